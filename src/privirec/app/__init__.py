"""What people use: the command line, the two web pages, reports and pictures."""
