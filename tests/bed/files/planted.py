"""Middleware of vLLM's server: what a broken engine answers, by the symptom that /planted/symptom names."""

import json
from pathlib import Path
from typing import Any

SYMPTOM = Path("/planted/symptom")
TEXTS = {
    "repeated": "the sea " * 30,
    "nan": "!" * 60,
    "undecodable": "\ufffd" * 40,
    "foreign": "The sea is salty because " + "\u6d77\u6c34\u5f88\u54b8" * 8,
    "template": "Rivers carry salt.<|im_end|>\n<|im_start|>user",
    "tool": 'Rivers <tool_call>{"name": "look"}</tool_call> carry salt.',
}


class Planted:
    def __init__(self, app: Any) -> None:
        self.app = app
        self.count = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        symptom = SYMPTOM.read_text().strip() if SYMPTOM.exists() else ""
        if not symptom or scope["type"] != "http" or not scope["path"].endswith("/completions"):
            await self.app(scope, receive, send)
            return
        self.count += 1
        start: dict[str, Any] = {}
        body = bytearray()

        async def changed(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            content = self.change(symptom, json.loads(body)) if start["status"] == 200 else json.loads(body)
            if symptom == "fails" and self.count % 3 == 0:
                start["status"] = 500
            data = json.dumps(content).encode()
            kept = [one for one in start["headers"] if one[0].lower() != b"content-length"]
            start["headers"] = [*kept, (b"content-length", b"%d" % len(data))]
            await send(start)
            await send({"type": "http.response.body", "body": data})

        await self.app(scope, receive, changed)

    def change(self, symptom: str, content: dict[str, Any]) -> dict[str, Any]:
        choice = content["choices"][0]
        text = TEXTS.get(symptom)
        if symptom == "empty":
            text = ""
        if symptom == "differs":
            text = f"{self.count % 10}{choice.get('text', '')}" if "text" in choice else None
        if symptom == "truncated":
            choice["finish_reason"], content["usage"]["completion_tokens"] = "length", 3
        if symptom == "aborted":
            choice["finish_reason"] = "abort"
        if text is not None and "message" in choice:
            choice["message"]["content"] = text
        elif text is not None:
            choice["text"] = text
        return content
