"""Fit the efficiencies to measured runs, and find out how far off the fit is on runs that it did not see.

Every metric of a run is a sum over the steps that served it, each weighted: TPOT by the share of requests that decode
in the step, TTFT by the share that waits. Which steps ran hardly depends on how long each took, so a run is replayed
once (``planner.observations``) and the fit then works on sums of step times, with exact derivatives.
"""

from planner.calibration.crossval import LEFT_OUT, cross_validate, leave_out, spreads
from planner.calibration.fit import fit
from planner.calibration.leaveout import LeaveOut
from planner.calibration.observed import Observed, ObservedMetric

__all__ = ["LEFT_OUT", "LeaveOut", "Observed", "ObservedMetric", "cross_validate", "fit", "leave_out", "spreads"]
