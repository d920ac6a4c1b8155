"""What `POST /tasks` takes: one variant for each task of the app, so that its arguments are checked and documented."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    create_model,
    field_validator,
)

from fleet.app import Fleet, Options, Task
from fleet.errors import ConfigurationError
from fleet.handler import NAME_MAX, Handler, encode_arguments, is_name
from fleet.http.view import only
from fleet.postgres.submit import Submission

SCOPE = "http"  # keys from here never meet those that Python code chooses
_YEARS_100 = 100 * 365 * 86400
_WHOLE_MAX = 2**31 - 1
_OTHER = "any other task"


class Order(BaseModel):
    """One task to be submitted. What is null counts as not given."""

    model_config = ConfigDict(extra="forbid")

    name: Any
    args: Any
    queue: str | None = Field(default=None, description="Default: the task's own.")
    priority: int | None = Field(default=None, ge=0, le=9, description="0 is the most urgent.")
    delay_seconds: float | None = Field(default=None, ge=0, le=_YEARS_100, description="Goes before `run_at`.")
    run_at: AwareDatetime | None = Field(default=None, description="Not started before.")
    expires_at: AwareDatetime | None = Field(default=None, description="Not started after.")
    timeout_seconds: float | None = Field(default=None, ge=0.001, le=_YEARS_100, description="For one attempt.")
    max_attempts: int | None = Field(default=None, ge=1, le=_WHOLE_MAX)
    max_losses: int | None = Field(default=None, ge=1, le=_WHOLE_MAX)
    idempotent: Annotated[Literal[False] | None, only(False)] = Field(
        default=None, description="False: never run this one twice by itself."
    )

    @field_validator("queue")
    @classmethod
    def _queue(cls, value: str | None) -> str | None:
        return None if value is None else _printable(value)

    def options(self, key: str | None) -> Options:
        options = Options(
            queue=self.queue,
            priority=self.priority,
            delay=self.delay_seconds,
            run_at=self.run_at,
            expires_at=self.expires_at,
            timeout=self.timeout_seconds,
            idempotent=self.idempotent,
            max_attempts=self.max_attempts,
            max_losses=self.max_losses,
            idempotency_key=key,
        )
        options.check()
        return options


class ForeignOrder(Order):
    """A task that this app does not have: another app's worker will know it. Its arguments are not checked."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return _printable(value)


class Orders:
    """What is accepted as an order: told apart by `name`, each with its own `args`."""

    def __init__(self, app: Fleet, *, allow_unknown: bool) -> None:
        queues = None if allow_unknown else sorted({handler.queue for handler in app.handlers.values()})
        kinds = {name: _kind(handler, queues) for name, handler in app.handlers.items()}
        if allow_unknown:
            kinds[_OTHER] = _other(list(kinds))
        if not kinds:
            raise ConfigurationError("the app has no task to submit: declare one with @app.task, or allow unknown ones")
        self.tagged = len(kinds) > 1
        self.adapter: TypeAdapter[Order] = TypeAdapter(_either(kinds, allow_unknown=allow_unknown))


def _printable(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"Input should have 1 to {NAME_MAX} printable characters")
    return name


def _kind(handler: Handler, queues: list[str] | None) -> type[Order]:
    needed = bool(handler.shape.__required_keys__)
    fields: dict[str, Any] = {
        "name": (Literal[handler.name], ...),
        "args": (handler.shape, ... if needed else Field(default_factory=dict)),
    }
    if queues is not None:
        fields["queue"] = (Literal[tuple(queues)] | None, Field(default=None, description="Default: the task's own."))
    title = re.sub(r"\W+", "_", handler.name, flags=re.ASCII)
    summary = (handler.function.__doc__ or "").strip().partition("\n")[0] or f"The task {handler.name}."
    return create_model(f"{title}_order", __base__=Order, __doc__=summary, **fields)


def _other(known: list[str]) -> type[Order]:
    named = Field(json_schema_extra={"not": {"enum": [*known]}})
    return create_model("OtherOrder", __base__=ForeignOrder, name=(str, named))


def _either(kinds: Mapping[str, type[Order]], *, allow_unknown: bool) -> Any:
    first, *others = kinds.values()
    if not others:
        return first
    if not allow_unknown:
        return Annotated[Union[tuple(kinds.values())], Field(discriminator="name")]  # noqa: UP007 - made at run time

    def tag(order: Any) -> str:
        name = order.get("name") if isinstance(order, dict) else getattr(order, "name", None)
        return name if isinstance(name, str) and name in kinds else _OTHER

    variants = tuple(Annotated[kind, Tag(name)] for name, kind in kinds.items())
    return Annotated[Union[variants], Discriminator(tag)]  # noqa: UP007 - made at run time


def submission(app: Fleet, order: Order, key: str | None) -> Submission:
    """Return the task to be written. Raises InvalidArguments and PayloadTooLarge."""
    limit = app.settings.args_bytes_max
    handler = app.handlers.get(order.name)
    if handler is not None:
        return Task(app, handler, order.options(key)).submission_of(handler.dump(order.args, limit), SCOPE)
    text = encode_arguments(order.name, order.args, limit)
    foreign = Handler(
        function=_elsewhere, name=order.name, queue=order.queue or "default", idempotent=False, max_attempts=1
    )
    return Task(app, foreign, order.options(key)).submission_of(text, SCOPE)


def _elsewhere() -> None:
    """Stand for a handler that another app has."""
