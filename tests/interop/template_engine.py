# SPDX-License-Identifier: Apache-2.0
"""Chat templates as the engines render them: transformers' settings over Python's Jinja2."""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %}, as in transformers; the marked range is not needed here."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller):
        return caller()


class Engine:
    def __init__(self):
        self.now = 0
        self.env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        self.env.filters["tojson"] = self.tojson
        self.env.globals["raise_exception"] = self.raise_exception
        self.env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(self.now, datetime.timezone.utc).strftime(form)
        self.compiled = {}

    @staticmethod
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    @staticmethod
    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def render(self, template, variables, now=0):
        """Return {"text": ...} or {"error": ...}."""
        self.now = now
        try:
            if template not in self.compiled:
                self.compiled[template] = self.env.from_string(template)
            return {"text": self.compiled[template].render(**variables)}
        except Exception as e:  # any error of a template
            return {"error": f"{type(e).__name__}: {e}"}
