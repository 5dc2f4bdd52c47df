"""The payload models of AWorld's `core.common`, and their restoration from stored dicts."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field

from sqlbuffer.errors import FieldError
from sqlbuffer.strict_models import CheckedModel

Model = TypeVar("Model", bound=CheckedModel)


class ActionResult(CheckedModel):
    """The result of an action.

    Example:
        >>> ActionResult(success=True, content="done").is_done
        False
    """

    is_done: bool = False
    success: bool = False
    content: Any = None
    error: str | None = None
    keep: bool = False
    action_name: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = Field(default_factory=dict)
    parameter: dict[str, Any] | None = Field(default_factory=dict)


class Observation(CheckedModel):
    """The observation that an agent gets from a tool or another agent.

    Example:
        >>> Observation(content="a page").info
        {}
    """

    container_id: str | None = None
    observer: str | None = None
    ability: str | None = None
    from_agent_name: str | None = None
    to_agent_name: str | None = None
    content: Any = None
    dom_tree: Any = None
    image: str | None = None
    action_result: list[ActionResult] | None = Field(default_factory=list)
    images: list[str] | None = Field(default_factory=list)
    info: dict[str, Any] | None = Field(default_factory=dict)

    @property
    def is_tool_result(self) -> bool:
        """Whether it holds results of actions."""
        return bool(self.action_result)


class ActionModel(CheckedModel):
    """An action of an agent.

    Example:
        >>> ActionModel(tool_name="browser", action_name="click").params
        {}
    """

    tool_name: str | None = None
    tool_call_id: str | None = None
    agent_name: str | None = None
    action_name: str | None = None
    params: dict[str, Any] | None = Field(default_factory=dict)
    policy_info: Any = None


def _as_observation(value: Any) -> Any:
    return _rebuilt(Observation, value)


def _as_action(value: Any) -> Any:
    return _rebuilt(ActionModel, value)


def _rebuilt(model: type[Model], value: Any) -> Model | Any:
    """Return the model that was stored as this dict; any other value as it is.

    AWorld checks no payload: a state may be a dict, an array or a model that was changed to what
    its fields do not allow.
    """
    if not isinstance(value, dict) or value.keys() != model.model_fields.keys():
        return value
    try:
        return model.model_validate(value)
    except FieldError:
        return value


StateType = Annotated[Any, AfterValidator(_as_observation)]
ActionType = Annotated[Any, AfterValidator(_as_action)]
