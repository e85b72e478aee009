"""What launches, monitors and ends a rank. Read daemon/run.py first."""
