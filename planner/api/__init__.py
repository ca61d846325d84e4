"""The library: what ``from planner import ...`` gives, and what each command of the command line calls.

Functions take what the flags of the commands say, under the same names, and return an answer
(``planner.report.result.Result``). They never print and never exit; what a user can cause is raised as one of
``planner.errors``. ``planner/__init__.py`` lists what is public.
"""
