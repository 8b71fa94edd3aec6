"""The configuration: what the daemon may use, spend and run, in one TOML file.

Whatever is wrong with it is said at once, with file and key, before anything starts.
"""

from runner.config.credential import Credential, credential
from runner.config.file import find_config
from runner.config.known import unknown_tools
from runner.config.outside import Call, Effect, Notify
from runner.config.schema import DATABASE_FILE, Agent, Clocks, Config, CredentialFile, Git, Limits
from runner.config.template import template
from runner.config.upkeep import Keep, Machine
from runner.config.values import demand_no_password, is_url

__all__ = [
    "DATABASE_FILE",
    "Agent",
    "Call",
    "Clocks",
    "Config",
    "Credential",
    "CredentialFile",
    "Effect",
    "Git",
    "Keep",
    "Limits",
    "Machine",
    "Notify",
    "credential",
    "demand_no_password",
    "find_config",
    "is_url",
    "template",
    "unknown_tools",
]
