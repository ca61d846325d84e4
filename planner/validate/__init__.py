"""Was the prediction right? The measured results of an emitted plan beside what was promised, and why they differ."""

from planner.validate.causes import Finding, findings
from planner.validate.compare import Line, compare
from planner.validate.folder import Accuracy, Measured, read_folder
from planner.validate.further import FURTHER, FurtherLoad
from planner.validate.server_log import ServerLog, read_server_log
from planner.validate.verdict import Validation, validate

__all__ = [
    "FURTHER",
    "Accuracy",
    "Finding",
    "FurtherLoad",
    "Line",
    "Measured",
    "ServerLog",
    "Validation",
    "compare",
    "findings",
    "read_folder",
    "read_server_log",
    "validate",
]
