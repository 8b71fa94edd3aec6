"""A bad night: many tickets, a model that fails by a seeded schedule, and a daemon that is killed again and again.

`schedule` says what will happen and what comes of it, `world` plays it, `verdict` compares.
"""
