"""What people run beside the agent: set-up, measuring, support, and the commands. Read cli/main.py first."""
