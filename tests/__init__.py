"""Tests of the project, with real parts wherever there is one."""
