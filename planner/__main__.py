"""``python -m planner``."""

from planner.commands import run

if __name__ == "__main__":  # worker processes of planner ui import this module under another name
    run()
