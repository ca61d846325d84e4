"""The questions of ``planner.commands`` over HTTP: ``api`` has the functions, ``play`` the page, ``app`` serves both.

Only GET is answered, and nothing that it asks changes anything. starlette is imported here alone.
"""
