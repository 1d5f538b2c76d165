"""The fields of OpenAI's requests: which there are, what they may be, and who is told otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from linnet.serve.errors import ApiError


def _whole(value: Any) -> Any:
    """A whole number that is written with a point is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The bounds stand before it: they are the number's own, which the OpenAPI document says.
WHOLE = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=0, le=1 << 31), WHOLE]
Choices = Annotated[int, Field(ge=1, le=128), WHOLE]
Likeliest = Annotated[int, Field(ge=0, le=20), WHOLE]
TopK = Annotated[int, Field(ge=-1, le=1 << 31), WHOLE]
Seed = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1), WHOLE]
Token = Annotated[int, Field(ge=0, le=1 << 31), WHOLE]
Tokens = Annotated[list[Token], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Stops = Annotated[list[Stop], Field(max_length=4)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Object = dict[str, Any]

MOST_PROMPTS = 128


class Part(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(Part):
    """How a stream is."""

    include_usage: bool | None = Field(None, description="A last chunk says how many tokens.")


class JsonSchema(Part):
    """A JSON schema with a name."""

    name: str | None = None
    schema_: Object | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.json_schema is None) != (self.type != "json_schema"):
            raise ValueError("json_schema belongs to the type json_schema, which needs it")
        return self


class Body(Part):
    """What both ways to ask for text have in common."""

    # Fields of OpenAI that would change the answer, and what is meant where they would not.
    LACKING: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    # Fields of other servers that would change the answer as well, and what does it here.
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "structured_outputs": "guided_json, guided_regex or guided_choice",
        "guided_grammar": "guided_regex",
        "grammar": "guided_regex",
        "json_schema": "response_format or guided_json",
        "format": "response_format",
        "repeat_penalty": "repetition_penalty",
        "n_predict": "max_tokens",
        "num_predict": "max_tokens",
    }

    model: str | None = Field(None, description="The served model's name, or nothing.")
    max_tokens: Count | None = Field(None, description="At most so many tokens are generated.")
    temperature: float | None = Field(None, ge=0, le=2, description="1 unless given; 0: greedy.")
    top_p: float | None = Field(None, ge=0, le=1, description="Of the likeliest p.")
    top_k: TopK | None = Field(None, description="Of the k most likely tokens; 0 and -1: of all.")
    min_p: float | None = Field(None, ge=0, le=1, description="So many times the likeliest's.")
    seed: Seed | None = Field(None, description="The same seed gives the same answer.")
    n: Choices | None = Field(None, description="So many answers.")
    stop: Stop | Stops | None = Field(None, description="Where an answer ends; not returned.")
    stop_token_ids: Annotated[list[Token], Field(max_length=1024)] | None = None
    ignore_eos: bool | None = Field(None, description="Go on where the model would end.")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    logit_bias: dict[str, Bias] | None = Field(None, description="By token id.")
    stream: bool | None = Field(None, description="Server-sent events instead of one document.")
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: Object | str | None = Field(None, description="A JSON schema.")
    guided_regex: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    user: str | None = Field(None, description="Changes nothing.")

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token in bias or ():
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise ValueError(f"{token!r} is not the id of a token")
        return bias

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise _of("stream_options", "it needs `stream: true`")
        wanted = [
            name
            for name in ("guided_json", "guided_regex", "guided_choice")
            if getattr(self, name) is not None
        ]
        if self.response_format is not None and self.response_format.type != "text":
            wanted.insert(0, "response_format")
        if len(wanted) > 1:
            raise _of(wanted[1], f"give it or {wanted[0]}, not both")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(Body):
    """A text to go on with."""

    LACKING: ClassVar[Mapping[str, tuple[Any, ...]]] = {"suffix": ("",)}

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_PROMPTS)]
    ) = Field(description="A text, token ids, or several of either.")
    echo: bool | None = Field(None, description="The prompt comes before the answer.")
    logprobs: Likeliest | None = Field(
        None, description="Log-probabilities of the tokens, and of so many alternatives."
    )
    best_of: Choices | None = Field(None, description="n, if at all.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _of("best_of", f"it must be n, which is {self.n or 1}, where it is given")
        if self.echo and self.logprobs is not None:
            raise _of("logprobs", "they are not computed for the prompt, so not with echo")
        if len(self.prompts) * (self.n or 1) > MOST_PROMPTS:
            raise _of("n", f"prompts times n may be {MOST_PROMPTS} at most")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several."""
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if single else list(prompt)


# --- chat -------------------------------------------------------------------------------------


class CalledFunction(Part):
    """A function and the JSON text of its arguments."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str


class ToolCall(Part):
    """A call that the assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ContentPart(Part):
    """A part of a message's content; texts are what there is."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        if self.type not in ("text", "refusal"):
            raise ValueError(f"parts of type {self.type!r} cannot be read: only text can")
        if getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type} needs a {self.type!r}")
        return self

    @property
    def words(self) -> str:
        """Its text."""
        return self.text or self.refusal or ""


class Message(Part):
    """What somebody said."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} needs a content")
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of the assistant")
        return self

    @property
    def words(self) -> str:
        """Its content as one text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.words for part in self.content)


class FunctionSpec(Part):
    """A function that may be called."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(Part):
    """A tool that the model may use."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Part):
    """A function's name."""

    name: str


class NamedTool(Part):
    """The tool that must be used."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(Body):
    """A conversation to answer."""

    LACKING: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "audio": (),
        "modalities": (["text"],),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "web_search_options": (),
        "verbosity": ("medium",),
        "moderation": (),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = Field(None, description="max_tokens by its new name.")
    logprobs: bool | None = None
    top_logprobs: Likeliest | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Object | None = Field(None, description="Variables of the template.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise _of("max_tokens", "give it or max_completion_tokens, not both")
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) == 0:
                raise _of(name, "an answer has one token at least")
        if self.top_logprobs is not None and not self.logprobs:
            raise _of("top_logprobs", "it needs `logprobs: true`")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise _of("tools", "two functions have one name")
        match self.tool_choice:
            case "required" if not names:
                raise _of("tool_choice", "required needs `tools`")
            case NamedTool(function=NamedFunction(name=name)) if name not in names:
                raise _of("tool_choice", f"no function of `tools` has the name {name!r}")
            case _:
                return self


# --- reading ----------------------------------------------------------------------------------


class _Wrong(ValueError):
    """A field that does not agree with another."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _of(field: str, message: str) -> _Wrong:
    return _Wrong(field, message)


Some = TypeVar("Some", bound=Body)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is; raises ApiError where it is none."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(raw, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is not a JSON object: {value!r:.60}", code="invalid_json")
    return value


def read(kind: type[Some], values: Mapping[str, Any]) -> tuple[Some, list[str]]:
    """The request that the body states, and the names of fields that are ignored.

    Raises ApiError (400) naming the first field that is wrong, or that would change the answer and
    is not supported.
    """
    for name, harmless in kind.LACKING.items():
        value = values.get(name)
        if value is not None and value not in harmless:
            raise ApiError(
                400, f"{name} is not supported by this server", name, "unsupported_parameter"
            )
    for name, instead in kind.INSTEAD.items():
        if values.get(name) not in (None, ""):
            raise ApiError(
                400,
                f"{name} is not supported by this server; {instead} is",
                name,
                "unsupported_parameter",
            )
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        raise _invalid(error) from None
    return body, [name for name in values if name not in kind.model_fields]


def _invalid(error: ValidationError) -> ApiError:
    """The mistake that is nearest to what was meant: of a field's alternatives, the deepest."""
    problems = error.errors(include_url=False)
    first = problems[0]["loc"][:1]
    same = [one for one in problems if one["loc"][:1] == first]
    problem = max(same, key=lambda one: sum(isinstance(part, int) for part in one["loc"]))
    cause = problem.get("ctx", {}).get("error")
    message = str(cause) if cause is not None else _plain(problem["msg"])
    if isinstance(cause, _Wrong):
        return ApiError(400, f"{cause.field}: {message}", cause.field, "invalid_value")
    names = list(_path(problem["loc"]))
    param = "".join(names).removeprefix(".")
    if problem["type"] == "missing":
        message = f"`{param}` is missing"
        return ApiError(400, message, param, "missing_required_parameter")
    if len(same) > 1 and len(problem["loc"]) > 1:
        message = _alternatives(same) if all(len(one["loc"]) == 2 for one in same) else message
    found = json.dumps(problem["input"], ensure_ascii=False, default=str)
    shown = found if len(found) <= 60 else found[:57] + "..."
    return ApiError(400, f"{param} is {shown}: {message}", param, "invalid_value")


def _plain(message: str) -> str:
    said = re.sub(r"^(Input|List|String|Dictionary) should", "it should", message)
    return said.replace(" after validation", "")


def _alternatives(problems: Iterable[Any]) -> str:
    """What a field of several kinds may be."""
    listed = dict.fromkeys(_plain(one["msg"]).removeprefix("it should ") for one in problems)
    return "it should " + ", or ".join(listed)


def _path(place: tuple[int | str, ...]) -> Iterable[str]:
    """`messages[0].content` from where pydantic found something; its own marks are left out."""
    for part in place:
        if isinstance(part, int):
            yield f"[{part}]"
        elif part.isidentifier() and part not in _KINDS:
            yield f".{part}"


_KINDS = {
    "str", "int", "float", "bool", "list", "dict", "NamedTool",
}  # fmt: skip


def header(ignored: Iterable[str]) -> str:
    """Names of ignored fields as a header may say them."""
    named = [quote(name.encode("utf-8", "replace"), safe="")[:64] for name in ignored]
    return ", ".join(named[:32])
