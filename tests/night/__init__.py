"""A bad night: many tickets, a model that fails by a seeded schedule, and a daemon that is killed again and again.

`plans` says what comes of a ticket, `schedule` what happens in the night, `world` plays it, `verdict` compares.
"""
