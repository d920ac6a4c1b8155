"""A registered function: what its author declared about it, and how its arguments become JSON and back."""

import concurrent.futures
import inspect
import random
import traceback
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NotRequired

import pydantic
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from fleet.context import Context
from fleet.errors import ConfigurationError, InvalidArguments, InvalidResult, PayloadTooLarge
from fleet.payload import Unrepresentable, byte_length, check, clean_text, encode, suspicious
from fleet.retry import BackOff, Fail, Retry
from fleet.task import MAX_LOSSES, PRIORITIES, PRIORITY_DEFAULT, ClaimedTask, Errored, FailureCode

_REFUSED_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keywords",
}
NAME_MAX = 200
_MACHINERY = (Path(__file__).parent / "worker", Path(concurrent.futures.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function and its declaration. Raises ConfigurationError where the two cannot hold together."""

    function: Callable[..., Any]
    name: str
    queue: str
    idempotent: bool
    max_attempts: int
    max_losses: int = MAX_LOSSES
    priority: int = PRIORITY_DEFAULT
    timeout: timedelta | None = None
    retry_on: tuple[type[Exception], ...] = ()
    fail_on: tuple[type[Exception], ...] = ()
    is_async: bool = field(init=False)
    context_name: str | None = field(init=False)
    parameters: tuple[str, ...] = field(init=False)
    shape: Any = field(init=False, repr=False)  # a TypedDict: the arguments as pydantic checks them
    _loose: bool = field(init=False, repr=False)  # some argument may be anything: pydantic would write its NaN as null
    _adapter: "pydantic.TypeAdapter[dict[str, Any]]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        context_name, arguments = _signature(self.function, self.name)
        set_ = object.__setattr__
        set_(self, "is_async", inspect.iscoroutinefunction(self.function))
        set_(self, "context_name", context_name)
        set_(self, "parameters", tuple(arguments))
        set_(self, "shape", _shape(self.name, arguments))
        set_(self, "_adapter", _adapter(self.name, self.shape))
        set_(self, "_loose", "'type': 'any'" in repr(self._adapter.core_schema))

    def _check(self) -> None:
        rules = {
            f"a name has 1 to {NAME_MAX} printable characters": is_name(self.name),
            f"a queue's name has 1 to {NAME_MAX} printable characters": is_name(self.queue),
            "priority is 0 (most urgent) to 9": self.priority in PRIORITIES,
            "max_attempts >= 1": self.max_attempts >= 1,
            "max_losses >= 1": self.max_losses >= 1,
            "timeout > 0": self.timeout is None or self.timeout > timedelta(0),
            "retry_on needs idempotent=True: another handler must raise Retry itself": self.idempotent
            or not self.retry_on,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ConfigurationError(f"task {self.name!r}: {rule}")

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises InvalidArguments for too many, or one given twice."""
        if not args:
            return dict(kwargs)
        if len(args) > len(self.parameters):
            raise InvalidArguments(f"{self.name} takes {len(self.parameters)} arguments, {len(args)} were given")
        named = dict(zip(self.parameters, args, strict=False))
        twice = named.keys() & kwargs.keys()
        if twice:
            raise InvalidArguments(f"{self.name}: {', '.join(sorted(twice))} given twice")
        return named | dict(kwargs)

    def encode(self, arguments: Mapping[str, Any], limit_bytes: int) -> str:
        """Check arguments against the signature and return them as JSON text of at most `limit_bytes`.

        Raises InvalidArguments listing every argument that does not fit, or the path to what JSON cannot carry.
        """
        try:
            values = self._adapter.validator.validate_python(arguments)
        except pydantic.ValidationError as error:
            raise InvalidArguments(f"{self.name}: {_problems(error)}") from None
        return self.dump(values, limit_bytes)

    def dump(self, values: Mapping[str, Any], limit_bytes: int) -> str:
        """Return arguments that have been checked against `shape` as JSON text. Raises InvalidArguments as above."""
        try:
            if self._loose:
                check(values, to_jsonable_python)
            text = self._text(values)
        except (Unrepresentable, PydanticSerializationError) as error:
            raise InvalidArguments(f"{self.name}: {error}") from None
        return _bounded(self.name, text, limit_bytes)

    def _text(self, values: Mapping[str, Any]) -> str:
        """Return JSON text: the quick way is pydantic's, the other one names the place of what cannot be carried.

        The quick way writes NaN and infinities as null, so where there is a null, it is not believed.
        """
        with suppress(PydanticSerializationError):
            text = self._adapter.serializer.to_json(values, by_alias=True).decode()
            if "null" not in text and not suspicious(text):
                return text
        return encode(self._adapter.dump_python(dict(values), mode="json", by_alias=True))

    def decode(self, text: str) -> dict[str, Any]:
        """Return the arguments as the function takes them. Raises InvalidArguments where they fit no longer."""
        try:
            arguments: dict[str, Any] = self._adapter.validator.validate_json(text)
        except pydantic.ValidationError as error:
            raise InvalidArguments(f"{self.name}: {_problems(error)}") from None
        return arguments

    def judge(self, task: ClaimedTask, error: BaseException, backoff: BackOff, limit_bytes: int) -> Errored:
        """Decide what follows from an exception: another try after a delay, or the end.

        Only a repeatable task is tried again by itself; for any other the handler must have raised Retry.
        """
        reason = describe(error, limit_bytes)
        if isinstance(error, Retry):
            after = error.after if error.after is not None else backoff.delay(task.failures, random.random())
            return Errored(FailureCode.HANDLER_ERROR, reason, after)
        final = isinstance(error, (Fail, *self.fail_on)) or not task.repeatable
        if self.retry_on and not isinstance(error, self.retry_on):
            final = True
        return Errored(
            FailureCode.HANDLER_ERROR, reason, None if final else backoff.delay(task.failures, random.random())
        )


def is_name(text: str) -> bool:
    """Tell whether a task or a queue may be called so."""
    return 0 < len(text) <= NAME_MAX and text.isprintable()


def encode_arguments(name: str, arguments: Mapping[str, Any], limit_bytes: int) -> str:
    """Return a task's arguments, plain already, as JSON text. Raises InvalidArguments and PayloadTooLarge."""
    try:
        text = encode(arguments)
    except Unrepresentable as error:
        raise InvalidArguments(f"{name}: {error}") from None
    return _bounded(name, text, limit_bytes)


def _bounded(name: str, text: str, limit_bytes: int) -> str:
    size = byte_length(text)
    if size > limit_bytes:
        raise PayloadTooLarge(f"the arguments of {name}", size, limit_bytes)
    return text


def encode_result(result: Any, limit_bytes: int) -> str:
    """Return a handler's result as JSON text. Raises InvalidResult where it has no form or is over the limit."""
    if result is None:
        return "null"
    try:
        text = encode(result, default=to_jsonable_python)
    except (Unrepresentable, PydanticSerializationError) as error:
        raise InvalidResult(f"the handler finished, but its result cannot be stored: {error}") from None
    size = byte_length(text)
    if size > limit_bytes:
        raise InvalidResult(
            f"the handler finished, but its result takes {size:,} bytes as JSON; the limit is {limit_bytes:,}"
        )
    return text


def describe(error: BaseException, limit_bytes: int) -> str:
    """Return type, message and traceback as text that can be stored and shown."""
    try:
        told = traceback.TracebackException(type(error), error, _own_frames(error.__traceback__), compact=True)
        _shorten(told, 4 * limit_bytes)
        text = "".join(told.format())
        head = "".join(told.format_exception_only()).strip()
    except Exception as broken:  # noqa: BLE001 - an exception whose own text raises
        text, head = "", f"{type(error).__name__} (its text cannot be had: {type(broken).__name__})"
    return clean_text(f"{head}\n\n{text}".strip() if text.strip() != head else head, limit_bytes)


def _shorten(told: traceback.TracebackException, longest: int) -> None:
    """Cut messages and notes in the middle before they are formatted: that goes line by line, a second for each million."""

    def ends(text: str) -> str:
        return text if len(text) <= longest else text[: longest // 2] + text[-(longest // 2) :]

    waiting: list[traceback.TracebackException | None] = [told]
    while waiting:
        one = waiting.pop()
        if one is None:
            continue
        one._str = ends(one._str)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to the message
        if isinstance(one.__notes__, list):
            one.__notes__ = [ends(note) if isinstance(note, str) else note for note in one.__notes__]
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Skip the frames between the slot and the handler: they say nothing about the handler."""
    begin = frames
    while begin is not None and Path(begin.tb_frame.f_code.co_filename).parent in _MACHINERY:
        begin = begin.tb_next
    return begin or frames


def _signature(function: Callable[..., Any], name: str) -> tuple[str | None, dict[str, tuple[Any, bool]]]:
    """Return the name of the Context parameter and, for each argument, its annotation and whether it is required."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(f"task {name!r}: an annotation cannot be resolved: {error}") from None
    context_name, arguments = None, {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _REFUSED_KINDS:
            raise ConfigurationError(
                f"task {name!r}: parameter {parameter.name!r} {_REFUSED_KINDS[parameter.kind]}; "
                "tasks are stored by the names of their arguments"
            )
        annotation = hints.get(parameter.name, Any)
        if annotation is Context:
            context_name = parameter.name
        else:
            arguments[parameter.name] = (annotation, parameter.default is inspect.Parameter.empty)
    return context_name, arguments


_typed_dict: Any = TypedDict  # made at run time: no type checker can know its fields


def _shape(name: str, arguments: Mapping[str, tuple[Any, bool]]) -> Any:
    fields = {key: kind if required else NotRequired[kind] for key, (kind, required) in arguments.items()}
    shape: Any = _typed_dict(f"{name}_arguments", fields)
    # By default pydantic writes NaN and infinities as null: another value than the one that was submitted.
    shape.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid", arbitrary_types_allowed=False, ser_json_inf_nan="constants"
    )
    return shape


def _adapter(name: str, shape: Any) -> "pydantic.TypeAdapter[dict[str, Any]]":
    try:
        return pydantic.TypeAdapter(shape)
    except pydantic.errors.PydanticUserError as error:
        raise ConfigurationError(f"task {name!r}: an argument's type has no JSON form: {error.message}") from None


def _problems(error: pydantic.ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'arguments'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )
