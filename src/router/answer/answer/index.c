/* SPDX-License-Identifier: Apache-2.0 */
/* index: the page at /, which says what answers here. */
#include "base/json/json.h"
#include "router/answer/answer/reply_priv.h"

#define INDEX_WHAT "router of LLM inference engines"
#define INDEX_DOCS "docs/laptop/api/README.md of the source tree"

static const struct index_link {
	const char *name, *path, *what;
} index_links[] = {
	{"models", "/v1/models", "models that can be used now"},
	{"health", "/healthz", "is the router alive"},
	{"ready", "/readyz", "can requests be answered"},
	{"version", "/version", "version of the router"},
	{"openai", "/v1/chat/completions", "OpenAI's API: base URL /v1"},
	{"anthropic", "/v1/messages", "Anthropic's API: base URL /"},
	{"ollama", "/api/chat", "Ollama's API: base URL /"},
};

static void index_json(struct cgn_buf *b)
{
	struct json_out j = json_out_to(b);
	json_open(&j, '{');
	json_key_z(&j, "name", "cognitora");
	json_key_z(&j, "version", CGN_VERSION);
	json_key_z(&j, "what", INDEX_WHAT);
	json_key_open(&j, "links", '{');
	for (size_t i = 0; i < CGN_COUNT(index_links); i++)
		json_key_z(&j, index_links[i].name, index_links[i].path);
	json_key_z(&j, "docs", INDEX_DOCS);
	json_close(&j, '}');
	json_close(&j, '}');
	cgn_buf_char(b, '\n');
}

static void index_text(struct cgn_buf *b)
{
	cgn_buf_putz(b, "cognitora " CGN_VERSION ": " INDEX_WHAT "\n\n");
	for (size_t i = 0; i < CGN_COUNT(index_links); i++)
		cgn_buf_fmt(b, "%-24s %s\n", index_links[i].path, index_links[i].what);
	cgn_buf_putz(b, "\ndocumentation: " INDEX_DOCS "\n");
}

static void index_html(struct cgn_buf *b)
{
	cgn_buf_putz(b,
		"<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cognitora</title></head>"
		"<body>\n<h1>cognitora " CGN_VERSION "</h1>\n<p>" INDEX_WHAT "</p>\n<ul>\n");
	for (size_t i = 0; i < CGN_COUNT(index_links); i++)
		cgn_buf_fmt(b, "<li><a href=\"%s\">%s</a>: %s</li>\n", index_links[i].path,
			index_links[i].path, index_links[i].what);
	cgn_buf_putz(b, "</ul>\n<p>documentation: " INDEX_DOCS "</p>\n</body></html>\n");
}

/* Answer "/" with a description of the router: JSON, or a page or a text where a browser or a terminal
 * asks. */
enum gw_step gw_reply_index(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	if (r->client.wants_html) {
		index_html(&b);
		return gw_reply_typed(r, 200, "text/html; charset=utf-8", &b);
	}
	if (r->client.wants_text) {
		index_text(&b);
		return gw_reply_typed(r, 200, "text/plain; charset=utf-8", &b);
	}
	index_json(&b);
	return gw_reply_typed(r, 200, "application/json", &b);
}
