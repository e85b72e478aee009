"""The NodeReport and its outlets: publisher, table, metrics, HTTP for observers.

Read model.py first. Outlets render a report; what it says is decided in agent.
"""
