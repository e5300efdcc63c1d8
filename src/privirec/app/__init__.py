"""The application: command line, web pages, reports, planner, and the work of the commands."""
