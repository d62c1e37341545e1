"""The chat format of deskside-mini.

A checkpoint of this family says here how a conversation becomes a prompt. deskside reads the
constants below as literals and never runs this file. The format around them is that of the family:

    begin, effort's text, system text,
    then for each turn <｜User｜> text, <｜Assistant｜> and <think> or </think>, answer, end

Tools are described behind the system text, and called in a block that the last constant shows.

The texts are this model's own. It was not trained on them: they let every effort give another
prompt, so that the way from a request to the ids can be tried and tested without a large model.
"""

REASONING_EFFORT_PROMPTS: dict[str, str] = {
    "low": "",
    "high": (
        "Reasoning effort: high.\n"
        "Look at the question from more than one side, and check each step before the next.\n\n"
    ),
    "max": (
        "Reasoning effort: max.\n"
        "Take all the room you need. Write down what you try and why you drop it, and check the "
        "result by a second way before you answer.\n\n"
    ),
}

DEFAULT_REASONING_EFFORT = "low"

TOOLS_TEMPLATE = """# Tools

You may call the functions listed below. To do so, end your answer with a block of this form:

<{dsml_token}tool_calls>
<{dsml_token}invoke name="$FUNCTION">
<{dsml_token}parameter name="$ARGUMENT" string="true|false">$VALUE</{dsml_token}parameter>
</{dsml_token}invoke>
</{dsml_token}tool_calls>

One invoke stands for one call, one parameter for one argument. Write a text as it is, with
string="true"; write every other value as JSON, with string="false". If you think, finish inside
{thinking_start_token} and {thinking_end_token} before you call.

Functions, one a line:

{tool_schemas}

Use only these functions, and only arguments that they have."""

# It was not trained to think either, and never ends a thought: it answers at once unless a request
# asks for thinking or for an effort.
DEFAULT_THINKING = False
