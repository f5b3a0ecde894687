/* SPDX-License-Identifier: Apache-2.0 */
#include "ask.h"

#include <string.h>

#include "base/json/json.h"
#include "http.h"

/* ---- asking ---- */

static void field_copy(const struct http_got *got, const char *name, char *out, size_t room)
{
	(void)cgn_str_copyz(out, room, http_header(got, name));
}

void ask_once(const struct ask *a, struct told *out)
{
	struct http_got got;
	const struct http_want want = {.ip = a->host,
		.port = a->port,
		.method = a->method,
		.path = a->path,
		.headers = a->fields,
		.kind = a->kind,
		.body = a->body,
		.leave_at = a->patience,
		.leave_after = a->leaves_at};
	http_ask(&want, &got);
	*out = (struct told){.status = got.status,
		.whole = got.end == HTTP_WHOLE,
		.late = got.end == HTTP_LEFT && got.took >= a->patience,
		.left = got.end == HTTP_LEFT && got.took < a->patience,
		.body = got.body};
	field_copy(&got, "x-cgn-peer", out->peer, sizeof out->peer);
	field_copy(&got, "x-cgn-node", out->node, sizeof out->node);
	field_copy(&got, "content-type", out->kind, sizeof out->kind);
	cgn_buf_fini(&got.head);
}

void told_fini(struct told *t)
{
	cgn_buf_fini(&t->body);
}

/* ---- from another machine ---- */

static struct ask_order {
	const struct ask *a;
	struct told *out;
} *order;

static int order_main(int argc, char **argv)
{
	struct ask_order *mine = order;
	(void)argc, (void)argv;
	order = NULL;
	ask_once(mine->a, mine->out);
	return 0;
}

void ask_from(struct world_host *h, const struct ask *a, struct told *out)
{
	static const char *const argv[] = {"ask", NULL};
	struct ask_order mine = {a, out};
	while (order != NULL)
		world_sleep(WORLD_MS);
	order = &mine;
	struct world_proc *p = world_start(h, "ask", order_main, argv);
	while (world_alive(p))
		world_sleep(WORLD_MS);
}

/* ---- texts ---- */

static void error_read(struct json_val v, struct told_text *out)
{
	struct json_val e, code;
	if (!json_get(v, "error", &e) || e.type == JSON_NULL)
		return;
	out->error = true;
	if (json_get(e, "code", &code) && code.type == JSON_STRING)
		(void)cgn_str_copyz(out->code, sizeof out->code,
			(struct cgn_str){code.raw.p + 1, code.raw.n - 2});
}

static void choice_read(struct json_val choice, struct told_text *out)
{
	struct json_val part, text;
	if (json_get(choice, "text", &text) && text.type == JSON_STRING)
		json_str_to(text, &out->text);
	if ((json_get(choice, "delta", &part) || json_get(choice, "message", &part)) &&
		json_get(part, "content", &text) && text.type == JSON_STRING)
		json_str_to(text, &out->text);
}

void told_text_add(struct cgn_str s, struct told_text *out)
{
	struct json_val v, choices, choice;
	struct cgn_err err;
	if (!cgn_ok(json_parse(s, &v, NULL, &err)) || v.type != JSON_OBJECT) {
		out->strange = true;
		return;
	}
	error_read(v, out);
	if (!json_get(v, "choices", &choices) || choices.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(choices);
	while (json_next_elem(&it, &choice))
		choice_read(choice, out);
}

static void event_read(struct cgn_str line, struct told_text *out)
{
	if (line.n < 6 || memcmp(line.p, "data: ", 6) != 0)
		return;
	struct cgn_str data = {line.p + 6, line.n - 6};
	if (out->done)
		out->strange = true;
	if (cgn_str_is(data, "[DONE]"))
		out->done = true;
	else
		told_text_add(data, out);
}

void told_text(const struct told *t, struct told_text *out)
{
	*out = (struct told_text){0};
	struct cgn_str all = cgn_buf_view(&t->body);
	if (strncmp(t->kind, "text/event-stream", 17) != 0) {
		if (all.n > 0)
			told_text_add(all, out);
		out->done = t->whole && all.n > 0;
		return;
	}
	while (all.n > 0) {
		const char *end = memchr(all.p, '\n', all.n);
		if (end == NULL)
			break;
		size_t n = (size_t)(end - all.p);
		event_read((struct cgn_str){all.p, n > 0 && all.p[n - 1] == '\r' ? n - 1 : n}, out);
		all = (struct cgn_str){end + 1, all.n - n - 1};
	}
}
