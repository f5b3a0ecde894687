/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz http1_head: messages are the same for any cuts of the bytes and for any place at which the reader
 * stops. The first byte chooses the cuts. */
#include <stdlib.h>

#include "io/wire/http/h1_parse_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct note {
	struct cgn_buf events, body;
	struct h1_parser p;
	bool stop_often;
};

static void add_fields(struct note *t, const struct http_field *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		CGN_MUST(http_name_is_token(f[i].name) && http_text_is_clean(f[i].value));
		cgn_buf_str(&t->events, f[i].name);
		cgn_buf_char(&t->events, '=');
		cgn_buf_str(&t->events, f[i].value);
		cgn_buf_char(&t->events, '\n');
	}
}

static void on_head(void *user, const struct http_head *h)
{
	struct note *t = user;
	CGN_MUST(h->n_fields <= 100 && h->content_length >= -1);
	cgn_buf_str(&t->events, h->method);
	cgn_buf_str(&t->events, h->path);
	cgn_buf_str(&t->events, h->authority);
	cgn_buf_fmt(&t->events, " %d %lld\n", h->status, (long long)h->content_length);
	add_fields(t, h->fields, h->n_fields);
	t->p.stop = t->stop_often;
}

static void on_body(void *user, const uint8_t *p, size_t n)
{
	struct note *t = user;
	cgn_buf_add(&t->body, p, n);
	t->p.stop = t->stop_often;
}

static void on_end(void *user, const struct http_field *trailers, size_t n)
{
	struct note *t = user;
	cgn_buf_fmt(&t->events, "end %zu\n", t->body.n);
	add_fields(t, trailers, n);
}

static const struct h1_parser_ops ops = {.on_head = on_head, .on_body = on_body, .on_end = on_end};

/* Feed all of |bytes|, in a block of their own, in one or more calls. */
static void note_feed(struct note *t, const uint8_t *bytes, size_t n)
{
	uint8_t *copy = malloc(n + 1);
	CGN_MUST(copy != NULL);
	if (n > 0)
		memcpy(copy, bytes, n);
	for (size_t at = 0; t->p.phase != H1_BAD;) {
		at += h1_parser_feed(&t->p, copy + at, n - at);
		CGN_MUST(at <= n);
		if (t->p.phase == H1_DONE)
			h1_parser_next(&t->p);
		else if (at == n && !(t->p.halted && t->p.phase == H1_BODY))
			break;
	}
	free(copy);
}

static void note_run(struct note *t, bool response, const uint8_t *data, size_t n, size_t step)
{
	struct http_store *spare = NULL;
	h1_parser_init(&t->p, response, &ops, t, &spare, 4096, 100);
	for (size_t at = 0; at < n && t->p.phase != H1_BAD; at += step)
		note_feed(t, data + at, n - at < step ? n - at : step);
	cgn_buf_fmt(&t->events, "phase %d fault %d\n", t->p.phase == H1_BAD, t->p.fault_status);
	h1_parser_fini(&t->p);
	http_store_free(&spare);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (n < 2)
		return 0;
	bool response = (data[0] & 1) != 0;
	struct note whole = {0}, parts = {.stop_often = (data[0] & 2) != 0};
	note_run(&whole, response, data + 1, n - 1, n);
	note_run(&parts, response, data + 1, n - 1, (size_t)(data[0] >> 2) % 16 + 1);
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole.events), cgn_buf_view(&parts.events)));
	CGN_MUST(cgn_str_eq(cgn_buf_view(&whole.body), cgn_buf_view(&parts.body)));
	cgn_buf_fini(&whole.events);
	cgn_buf_fini(&whole.body);
	cgn_buf_fini(&parts.events);
	cgn_buf_fini(&parts.body);
	return 0;
}
