/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/engine/change.h"

#include "agent/engine/engine.h"
#include "base/log/log.h"
#include "policy/node/engine/lastwords.h"

#define ANSWER_BYTES ((size_t)64 * 1024)

bool engine_change_start(struct engine *e, enum engine_change what, struct cgn_str name, struct cgn_str path,
	cgn_nsec timeout, webask_done *done, struct webask **out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	struct cgn_err err;
	const char *to = engine_change_ask(e->ops->kind, what, name, path, &body);
	const struct webask_question ask = {.path = to,
		.json = cgn_buf_view(&body),
		.max_bytes = ANSWER_BYTES,
		.timeout = timeout};
	if (to == NULL)
		return false;
	if (!body.bad && cgn_ok(webask_start(e->host->loop, &e->view.at, &ask, done, e, out, &err)))
		return true;
	cgn_log_limited(WARN, "engine.change_failed", F_STR("engine", e->name), F_STR("path", to),
		F_STR("why", body.bad ? "out of memory" : err.msg), F_STR("then", "tried again"));
	return false;
}

/* Return the message of an error in OpenAI's form, or the body. */
static void message_read(struct cgn_str body, struct cgn_buf *out)
{
	struct json_val doc, error, message;
	bool found = cgn_ok(json_parse(body, &doc, NULL, NULL)) && doc.type == JSON_OBJECT;
	if (found && json_get(doc, "error", &error) && error.type == JSON_OBJECT)
		doc = error;
	const char *const keys[] = {"message", "error_message", "detail"};
	for (size_t i = 0; found && i < CGN_COUNT(keys) && out->n == 0; i++)
		if (json_get(doc, keys[i], &message) && message.type == JSON_STRING)
			json_str_to(message, out);
	if (out->n == 0)
		cgn_buf_str(out, body);
}

void engine_answer_text(const struct webask_answer *r, char *out, size_t cap)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf said = {0};
	char text[1024];
	if (r->err->code != CGN_FINE) {
		engine_text_keep(out, cap, cgn_str_of(r->err->msg));
		return;
	}
	message_read(r->body, &said);
	(void)snprintf(text, sizeof text, "the engine answered %d: %.800s", r->status,
		said.n > 0 && !said.bad ? cgn_buf_z(&said) : "");
	engine_text_keep(out, cap, cgn_str_of(text));
}

bool engine_drained(const struct engine *e, cgn_nsec since, uint32_t inflight)
{
	cgn_nsec waited = cgn_since(cgn_loop_now(e->host->loop), since);
	return waited >= ENGINE_HEARD && (inflight == 0 || waited >= e->host->drain_timeout);
}
