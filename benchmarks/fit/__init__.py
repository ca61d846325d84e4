"""The fits that we ship: which covariates change which efficiencies, deviations, and runs left out.

It builds on ``planner.evidence.fitting``, which a user's own ``planner calibrate`` needs too.
"""
