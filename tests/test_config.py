"""The configuration: what is understood, and in which words the rest is refused."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from runner.config import Config, Credential, credential, find_config, template
from runner.config.file import keys_of
from runner.config.values import Surroundings
from runner.errors import ConfigError, Exit

KEY = "sk-ant-api03-made-up"


def read(text: str, environ: dict[str, str] | None = None, directory: Path = Path("/etc/ticket-runner")) -> Config:
    """Return the configuration that the file's text is."""
    return Config.of(tomllib.loads(text), Surroundings(directory, environ or {}), file="a.toml")


def problems(text: str) -> list[str]:
    """Return all that is said of the file's text."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.exit_code is Exit.CONFIG
    return str(caught.value).splitlines()


def test_the_repository_is_enough() -> None:
    """With the repository alone all else has a value, and every derived place follows from it."""
    config = read('repository = "repos/example.git"')
    assert (config.repository, config.name) == ("/etc/ticket-runner/repos/example.git", "example")
    assert config.repository_path == Path("/etc/ticket-runner/repos/example.git")
    assert config.state_directory.parent == Path(os.environ["XDG_STATE_HOME"], "ticket-runner")
    assert config.state_directory.name.startswith("example-")
    assert config.queue_directory == config.state_directory / "queue"
    assert config.database_url == f"sqlite:///{config.state_directory}/ticket-runner.sqlite3"
    assert (config.limits.ticket_microusd, config.limits.day_microusd) == (5_000_000, 50_000_000)


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("https://git.example/team/web-app.git", "web-app"),
        ("git@git.example:web-app.git/", "web-app"),
        ("ssh://git.example/~me/what%20is this", "what-20is-this"),
        ("https://git.example/.git", "git.example"),
        ("file:///", "queue"),
    ],
)
def test_a_url_stays_as_it_is_and_names_the_queue(repository: str, name: str) -> None:
    """A URL is no path, and the queue is called after its last part as far as that can be a name."""
    config = read(f'repository = "{repository}"')
    assert (config.repository, config.repository_path, config.name) == (repository, None, name)


def test_two_repositories_of_one_name_have_two_states() -> None:
    """Repositories that differ only in their place do not share a state directory."""
    one, two = read('repository = "/a/example"'), read('repository = "/b/example"')
    assert one.name == two.name
    assert one.state_directory != two.state_directory


def test_the_unit_gives_the_state_directory() -> None:
    """Under systemd the state is in $STATE_DIRECTORY, the first of several, unless the file says otherwise."""
    unit = {"STATE_DIRECTORY": "/var/lib/ticket-runner/a:/var/lib/b"}
    assert read('repository = "/r"', unit).state_directory == Path("/var/lib/ticket-runner/a")
    assert read('repository = "/r"\nstate_directory = "s"', unit).state_directory == Path("/etc/ticket-runner/s")
    assert read('repository = "/r"\nstate_directory = "s"', unit).queue_directory == Path("/etc/ticket-runner/s/queue")


NAMELESS = """
import pwd, sys
from pathlib import Path
from runner.config import Config

pwd.getpwuid = {}.__getitem__  # as for a user id that the system does not know
print(Config.load(Path(sys.argv[1]), {}).state_directory)
"""


@pytest.mark.parametrize(("more", "said"), [("", "give `state_directory`"), ('state_directory = "/s"', "/s\n")])
def test_who_has_no_home_directory_gives_the_state_directory(tmp_path: Path, more: str, said: str) -> None:
    """A user of whom no home directory is known is told which key replaces it, and with that key needs none."""
    (tmp_path / "a.toml").write_text(f'repository = "/r"\n{more}\n')
    environ = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_STATE_HOME"}}
    command = [sys.executable, "-c", NAMELESS, str(tmp_path / "a.toml")]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert said in ended.stdout + ended.stderr


def test_paths_start_at_the_file_and_at_home(tmp_path: Path) -> None:
    """Relative paths in a loaded file start at its directory, and ~ is the home directory."""
    path = tmp_path / "ticket-runner.toml"
    path.write_text('repository = ".."\nqueue_directory = "~/tickets"\n[credential]\nfile = "key"\n')
    config = Config.load(path, {})
    assert config.repository == str(tmp_path.parent)
    assert config.queue_directory == Path(os.environ["HOME"], "tickets")
    assert config.credential.file == tmp_path / "key"


def test_every_problem_is_told_at_once() -> None:
    """All that is wrong is said in one error, a line each with file and key, and no value is shown."""
    text = """
        concurency = 2
        ticket_usd = 3
        agnet.model = "x"
        name = "-x"
        state_directory = 4
        poll_s = nan
        verify = ["make", ""]
        setup = "make"
        [limits]
        ticket_usd = 0
        day_usd = "lots"
        attempts = 1.5
        [agent]
        environment = { ANTHROPIC_API_KEY = "sk-made-up" }
        base_url = "https://user:sk-made-up@host"
        tools = 3
        [clocks]
        drain_s = -1
        lease_s = 2
        run_s = inf
        [git]
        base = "--all"
        password_env = "$PASSWORD"
        x = 1
        [env]
        TICKET_RUNNER_HOME = "x"
    """
    assert sorted(problems(text)) == [
        "a.toml: agent.base_url: must be a URL that starts with http:// or https:// and has no credential in it",
        (
            "a.toml: agent.environment: ANTHROPIC_API_KEY is a secret: put its value into a file of its own and name it"
            " in credential.file"
        ),
        "a.toml: agent.tools: must be a list: [...]",
        "a.toml: agnet: unknown key, did you mean agent?",
        "a.toml: clocks.drain_s: must be above 0",
        "a.toml: clocks.lease_s: must be at least 5",
        "a.toml: clocks.run_s: must be a finite number",
        "a.toml: concurency: unknown key, did you mean concurrency?",
        "a.toml: env: TICKET_RUNNER_HOME is set by ticket-runner itself",
        "a.toml: git.base: must be one word that does not start with `-`",
        "a.toml: git.password_env: must be the name of an environment variable",
        "a.toml: git.x: unknown key",
        "a.toml: limits.attempts: must be a whole number",
        'a.toml: limits.day_usd: must be a number or "unlimited"',
        "a.toml: limits.ticket_usd: must be above 0",
        "a.toml: name: must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit",
        "a.toml: poll_s: must be a finite number",
        "a.toml: repository: is required",
        "a.toml: setup: must be a list: [...]",
        "a.toml: state_directory: must be a path in quotes",
        "a.toml: ticket_usd: unknown key, did you mean limits.ticket_usd?",
        "a.toml: verify[1]: must be a shell command",
    ]


@pytest.mark.parametrize("key", ["ticket_usd", "day_usd"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "true", '"5"', "2e6", "[]"])
def test_money_is_a_real_amount(key: str, value: str) -> None:
    """A cap of zero or less, no number, or one beyond a million is refused."""
    (problem,) = problems(f'repository = "/r"\nlimits.{key} = {value}')
    assert problem.startswith(f"a.toml: limits.{key}: must be ")


EFFECTS = """
    [effects.deploy]
    description = "Deploy it."
    command = "deploy"
    [effects.announce]
    description = "Tell everyone."
    url = "https://chat.example/hook"
    headers_env = { Authorization = "CHAT_TOKEN" }
    env = ["LOOK_UP_TOKEN"]
    timeout_s = 5
"""


def test_an_effect_is_a_command_or_a_url() -> None:
    """An effect has a command's time or a URL's unless it says another, and names what it needs of the environment."""
    effects = read(f'repository = "/r"\n{EFFECTS}').effects
    assert [(name, effect.limit_s, set(effect.variables)) for name, effect in effects.items()] == [
        ("deploy", 600.0, set()),
        ("announce", 5.0, {"CHAT_TOKEN", "LOOK_UP_TOKEN"}),
    ]
    assert read('repository = "/r"\nnotify.url = "http://chat.example"').notify.limit_s == 60.0


def test_a_wrong_effect_is_named() -> None:
    """What is wrong with an effect or the notification is said with its name, and no value is shown."""
    text = """
        repository = "/r"
        [effects.both]
        description = "x"
        command = "x"
        url = "https://x.example"
        [effects.neither]
        description = "x"
        [effects.odd]
        command = "x"
        describtion = "x"
        url = "ftp://user:sk-made-up@x"
        env = ["A=sk-made-up"]
        input = { "Not a name" = "x" }
        [notify]
        on = ["dnoe"]
        headers_env = { Host = "X" }
    """
    assert sorted(problems(text)) == [
        "a.toml: effects.both: has a command and a url: one of them",
        "a.toml: effects.neither: needs a command or a url",
        "a.toml: effects.odd.describtion: unknown key, did you mean effects.NAME.description?",
        "a.toml: effects.odd.description: is required",
        "a.toml: effects.odd.env[0]: must be the name of an environment variable",
        "a.toml: effects.odd.input: 'Not a name' is no name: 1 to 41 of a-z 0-9 _ that start with a letter",
        "a.toml: effects.odd.url: must be a URL that starts with http:// or https:// and has no credential in it",
        "a.toml: notify.headers_env: 'Host' is no header that can be set",
        "a.toml: notify.on[0]: must be 'held', 'done' or 'warned'",
    ]


@pytest.mark.parametrize("name", ["ask", "comment", "notify", "report"])
def test_the_name_of_an_effect_is_free(name: str) -> None:
    """An effect cannot be called what there is already."""
    (problem,) = problems(f'repository = "/r"\n[effects.{name}]\ndescription = "x"\ncommand = "x"')
    assert problem == f"a.toml: effects: {name} is there already: choose another name"


@pytest.mark.parametrize("name", ["Deploy", "a-b", "1", "a" * 42])
def test_the_name_of_an_effect_is_that_of_a_tool(name: str) -> None:
    """An effect cannot be called what is no name of a tool."""
    (problem,) = problems(f'repository = "/r"\n[effects.{name}]\ndescription = "x"\ncommand = "x"')
    assert problem == f"a.toml: effects: {name!r} is no name: 1 to 41 of a-z 0-9 _ that start with a letter"


def test_headers_are_for_a_url() -> None:
    """Headers without a URL that they could be sent to are refused."""
    (problem,) = problems('repository = "/r"\n[notify]\ncommand = "x"\nheaders_env = { X = "Y" }')
    assert problem == "a.toml: notify: has headers_env and no url that they are for"


def test_a_notification_is_told_by_something() -> None:
    """A table that says how a person is told, and not by which command or URL, is refused; an empty one is none."""
    assert not read('repository = "/r"\n[notify]').notify.is_configured
    (problem,) = problems('repository = "/r"\n[notify]\non = ["held"]')
    assert problem == "a.toml: notify: needs a command or a url, or nobody is told"


@pytest.mark.parametrize("clocks", ["weather_s = 3600", "weather_s = 40\nweather_max_s = 39.5"])
def test_the_longest_wait_is_no_less_than_the_first(clocks: str) -> None:
    """A wait that would be longer than the longest is refused by its key, that of the default too."""
    (problem,) = problems(f'repository = "/r"\n[clocks]\n{clocks}')
    least = "3600" if "3600" in clocks else "40"
    assert problem == f"a.toml: clocks.weather_max_s: must be at least weather_s, which is {least}"
    assert read('repository = "/r"\n[clocks]\nweather_s = 40\nweather_max_s = 40').clocks.weather_max_s == 40


@pytest.mark.parametrize("name", ["Europe/Berlni", "Mars", "Europe", "/etc/localtime", "../UTC", "", "a\\u0000b"])
def test_a_time_zone_has_a_name(name: str) -> None:
    """Only the name of a time zone is taken, and one that is close to it is said."""
    assert read('repository = "/r"\ntime_zone = "Africa/Cairo"').zone == ZoneInfo("Africa/Cairo")
    (problem,) = problems(f'repository = "/r"\ntime_zone = "{name}"')
    assert problem.startswith("a.toml: time_zone: is no name of an IANA time zone, ")
    assert problem.endswith("did you mean Europe/Berlin?") or name != "Europe/Berlni"


def test_active_hours_are_refused_with_key_and_reason() -> None:
    """Hours are read in the time zone of the file, and each that is none is said with its key and what is wrong."""
    config = read('repository = "/r"\ntime_zone = "Asia/Tokyo"\nactive_hours = ["Sat 00:00-24:00"]')
    saturday_us = 1_782_486_000 * 1_000_000
    assert [config.hours.is_open(saturday_us + more) for more in (-1, 0)] == [False, True]
    first, second = problems('repository = "/r"\nactive_hours = ["Sat 8-9", "Sun 08:00-08:00", "Mon 08:00-09:00"]')
    assert first.startswith("a.toml: active_hours[0]: 'Sat 8-9' must be days and times")
    assert second == "a.toml: active_hours[1]: 'Sun 08:00-08:00' ends when it begins; a whole day is 00:00-24:00"


def test_time_zones_need_nothing_of_the_machine() -> None:
    """Where the system has no time zones, as in a minimal container, they are known all the same."""
    load = (
        "from runner.config import Config\n"
        "print(Config.model_validate({'repository': '/r', 'time_zone': 'Asia/Tokyo'}).zone)"
    )
    environment = os.environ | {"PYTHONTZPATH": ""}
    done = subprocess.run([sys.executable, "-c", load], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Asia/Tokyo"


def test_a_day_may_be_unlimited() -> None:
    """The word "unlimited" takes the day's cap away, and cents are exact in micro-dollars."""
    limits = read('repository = "/r"\nlimits.day_usd = "unlimited"\nlimits.ticket_usd = 0.29').limits
    assert (limits.day_microusd, limits.ticket_microusd) == (None, 290_000)


@pytest.mark.parametrize(
    ("repository", "said"),
    [
        ("", "must be a path or a URL"),
        ("--upload-pack=x", "must be a path or a URL"),
        ("a\\nb", "must be a path or a URL"),
        ("https://me:secret@git.example/r", "has a password in it"),
    ],
)
def test_a_repository_that_git_would_misread_is_refused(repository: str, said: str) -> None:
    """An empty repository, an option, a control character and a password in the URL are refused, and not repeated."""
    (problem,) = problems(f'repository = "{repository}"')
    assert problem.startswith(f"a.toml: repository: {said}")
    assert "secret" not in problem


def test_a_configuration_cannot_be_changed() -> None:
    """A loaded configuration is frozen, and its text does not show the database's address."""
    config = read('repository = "/r"\ndatabase_url = "postgresql+psycopg://me:secret@host/db"')
    with pytest.raises(ValueError, match="frozen"):
        config.concurrency = 3
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = ", "ticket-runner.toml: not TOML: Invalid value (at end of document)"),
        (b"a = '\xff'", "ticket-runner.toml: not UTF-8: byte 5"),
        (b"a = " + b"[" * 5000, "ticket-runner.toml: not TOML: "),
    ],
)
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """What is not TOML is refused with the file's name."""
    path = tmp_path / "ticket-runner.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load(path, {})
    assert str(caught.value).startswith(said)


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    """A file that is not there is refused with its path."""
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        Config.load(tmp_path / "none.toml", {})


def test_the_file_is_found_upwards(tmp_path: Path) -> None:
    """The chosen file comes first, then the variable's, then the nearest one upwards; without any, all are named."""
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"--config or \$TICKET_RUNNER_CONFIG"):
        find_config(here, {})
    for directory in (tmp_path, here.parent):
        (directory / "ticket-runner.toml").touch()
    assert find_config(here, {}) == here.parent / "ticket-runner.toml"
    assert find_config(here, {"TICKET_RUNNER_CONFIG": "/x.toml"}) == Path("/x.toml")
    assert find_config(here, {"TICKET_RUNNER_CONFIG": "/x.toml"}, Path("y.toml")) == Path("y.toml")


ALTERNATIVES = pytest.mark.parametrize("without", ["command", "url|headers_env"])
"""An effect is a command or a URL: the template shows both, and one of them can be in force."""


def uncommented(text: str, without: str = "command") -> str:
    """Return a template with every table and key in force but those that would contradict others."""
    return re.sub(rf"^#(?=\[[a-z.]+\]|(?!(?:{without}) )[a-z_]+ = )", "", text, flags=re.MULTILINE)


def flat(table: Mapping[str, object], name: str = "") -> dict[str, object]:
    """Return the values of all tables, by their keys as `keys_of` has them."""
    tables = {key.rpartition(".")[0] for key in keys_of(Config)} | {"effects", ""}
    found: dict[str, object] = {}
    for key, value in table.items():
        inner = "effects.NAME" if name == "effects" else f"{name}.{key}".removeprefix(".")
        found |= flat(value, inner) if isinstance(value, Mapping) and inner in tables else {inner: value}
    return found


def test_no_clock_cuts_a_healthy_run_by_default() -> None:
    """A run may go on for hours, and a tool be silent for longer than Claude Code itself lets a command run (600 s)."""
    config = read('repository = "https://git.example/r"')
    assert (config.clocks.run_s, config.limits.ticket_active_s) == (None, None)
    assert config.clocks.tool_silence_s >= 600 + config.clocks.silence_s


def test_the_template_has_every_key() -> None:
    """Every key is in the template, with a value that is valid, and nothing else is."""
    shown: set[str] = set()
    for without in ("command", "url|headers_env"):
        table = tomllib.loads(uncommented(template(Path("/srv/example.git")), without))
        assert Config.of(table, Surroundings()).limits.day_usd == 50.0
        shown |= flat(table).keys()
    assert shown == set(keys_of(Config))


@ALTERNATIVES
def test_the_template_tells_the_defaults(without: str) -> None:
    """A value in the template is the default, but where the text says in words what that is."""
    text = template("https://git.example/r")
    least = '[effects.deploy]\ndescription = "x"\ncommand = "x"\n'
    plain = flat(read(f'repository = "https://git.example/r"\n{least}').model_dump())
    shown = flat(read(uncommented(text, without)).model_dump())
    for key in set(keys_of(Config)) - {"repository"}:
        table, _, leaf = key.rpartition(".")
        if re.fullmatch(without, leaf):
            continue
        of_table = text.partition(f"[{table.replace('NAME', 'deploy')}]\n")[2] if table else text
        comment = re.findall(rf"((?:^# .*\n)+)#{leaf} = ", of_table, flags=re.MULTILINE)[0]
        told = comment.replace("\n# ", " ")
        assert ("Default: " in told) is (shown[key] != plain[key] and "Required." not in told), key


@pytest.mark.parametrize("repository", ['/a "b" \\c', "/ü\x7f"])
def test_the_template_quotes_the_repository(repository: str) -> None:
    """Any path comes out of the template as it went in."""
    assert tomllib.loads(template(Path(repository)))["repository"] == repository


def places(tmp_path: Path, *, file: str | None = None, unit: str | None = None) -> tuple[Config, dict[str, str]]:
    """Return a configuration and an environment with a key in the given places."""
    text = 'repository = "/r"\n'
    if file is not None:
        (tmp_path / "key").write_text(file)
        (tmp_path / "key").chmod(0o600)
        text += '[credential]\nfile = "key"\n'
    environ = {}
    if unit is not None:
        (tmp_path / "anthropic-api-key").write_text(unit)
        (tmp_path / "anthropic-api-key").chmod(0o400)
        environ["CREDENTIALS_DIRECTORY"] = str(tmp_path)
    return read(text, directory=tmp_path), environ


def test_the_first_place_with_a_key_wins(tmp_path: Path) -> None:
    """The environment comes first, then the file, then the unit's; the kind of the key decides its variable."""
    config, environ = places(tmp_path, file="sk-ant-oat01-made-up\n", unit=f"{KEY}\n")
    found = credential(config, environ | {"CLAUDE_CODE_OAUTH_TOKEN": "token", "ANTHROPIC_API_KEY": KEY})
    assert found == Credential("ANTHROPIC_API_KEY", KEY, "$ANTHROPIC_API_KEY")
    found = credential(config, environ | {"CLAUDE_CODE_OAUTH_TOKEN": "token"})
    assert found == Credential("CLAUDE_CODE_OAUTH_TOKEN", "token", "$CLAUDE_CODE_OAUTH_TOKEN")
    found = credential(config, environ)
    assert found == Credential("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-made-up", f"{tmp_path}/key (credential.file)")
    config, environ = places(tmp_path, unit=f"{KEY}\n")
    found = credential(config, environ)
    assert (found.variable, found.value) == ("ANTHROPIC_API_KEY", KEY)
    assert KEY not in repr(found)


def test_without_a_key_all_places_are_named(tmp_path: Path) -> None:
    """With no key anywhere the error names every place that was looked at."""
    config, environ = places(tmp_path)
    with pytest.raises(ConfigError) as caught:
        credential(config, environ | {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert str(caught.value) == (
        "no key for Claude: looked at $ANTHROPIC_API_KEY, $CLAUDE_CODE_OAUTH_TOKEN, credential.file (not given)"
        " and $CREDENTIALS_DIRECTORY/anthropic-api-key (not there); put it into one of these"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (f"{KEY}\nsecond\n", "must be one line with the key and nothing else"),
        (f"export KEY={KEY}", "must be one line with the key and nothing else"),
        (f"{KEY}\u00e4", "has a byte in it that no key has"),
    ],
)
def test_a_bad_key_is_refused_and_not_shown(tmp_path: Path, content: str, said: str) -> None:
    """A key that is empty, more than a line or not ASCII is refused with its place, and is in no message."""
    config, environ = places(tmp_path, file=content, unit=KEY)
    with pytest.raises(ConfigError) as caught:
        credential(config, environ)
    assert str(caught.value) == f"{tmp_path}/key (credential.file): {said}" + (
        ": put a key there, or take it away" if said == "is empty" else ""
    )


def test_an_empty_variable_is_refused() -> None:
    """A variable that is set to nothing is a mistake, not a missing key."""
    with pytest.raises(ConfigError, match=r"^\$ANTHROPIC_API_KEY: is empty"):
        credential(read('repository = "/r"'), {"ANTHROPIC_API_KEY": ""})


def test_a_key_that_everyone_can_read_is_refused(tmp_path: Path) -> None:
    """A key's file that others can read, or that is named and not there, is refused."""
    config, environ = places(tmp_path, file=KEY)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"every user of this machine can read it: chmod 600"):
        credential(config, environ)
    (tmp_path / "key").unlink()
    with pytest.raises(ConfigError, match=r"there is no such file"):
        credential(config, environ)
