/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz h2_frames: any bytes of a peer after the connection preface, against the stream bookkeeping of both
 * sides. */
#include <stdlib.h>

#include "io/wire/http/h2_link_priv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_STREAMS 16

struct guest {
	struct h2_stream st;
	unsigned ends;
};

static struct guest *guests[4096];
static size_t n_guests;
static uint8_t style;

static struct guest *guest_of(struct h2_stream *st)
{
	return CGN_CONTAINER(st, struct guest, st);
}

static struct guest *guest_new(struct h2_link *l, int32_t id)
{
	struct guest *g = calloc(1, sizeof *g);
	CGN_MUST(g != NULL);
	h2_stream_init(&g->st, l, id);
	if (n_guests < CGN_COUNT(guests))
		guests[n_guests++] = g;
	return g;
}

static bool on_head(struct h2_link *l, int32_t id, struct h2_stream *st, struct http_store *s, bool full)
{
	CGN_MUST(s->head.n_fields <= 100);
	if (st != NULL)
		return true;
	if (!l->server || full || n_guests == CGN_COUNT(guests))
		return false;
	struct guest *g = guest_new(l, id);
	(void)nghttp2_session_set_stream_user_data(l->session, id, &g->st);
	h2_stream_pause(&g->st, (style & 1) != 0);
	return false;
}

static void on_data(struct h2_stream *st, const uint8_t *p, size_t n)
{
	(void)p;
	CGN_MUST(n > 0 && guest_of(st)->ends == 0 && !st->paused);
	if ((style & 2) != 0)
		h2_stream_pause(st, true);
	if ((style & 4) != 0)
		h2_stream_reset(st, NGHTTP2_CANCEL);
}

static void on_end(struct h2_stream *st, const struct http_field *trailers, size_t n)
{
	(void)trailers;
	(void)n;
	guest_of(st)->ends++;
	CGN_MUST(guest_of(st)->ends == 1);
	if ((style & 8) != 0)
		h2_stream_end(st, NULL);
}

static void on_closed(struct h2_stream *st, uint32_t code)
{
	(void)code;
	h2_stream_fini(st);
}

static void on_drain(struct h2_stream *st)
{
	(void)st;
}

static const struct h2_link_ops ops = {.on_head = on_head,
	.on_data = on_data,
	.on_end = on_end,
	.on_closed = on_closed,
	.on_drain = on_drain};

static void on_turn(struct cgn_hook *h)
{
	(void)h;
}

static void link_ask(struct h2_link *l)
{
	static uint8_t get[] = "GET", http[] = "http", slash[] = "/", m[] = ":method", s[] = ":scheme",
		       p[] = ":path";
	nghttp2_nv nv[] = {{m, get, 7, 3, 0}, {s, http, 7, 4, 0}, {p, slash, 5, 1, 0}};
	struct guest *g = guest_new(l, 0);
	g->st.id = nghttp2_submit_request(l->session, NULL, nv, 3, NULL, &g->st);
	const uint8_t *out;
	while (nghttp2_session_mem_send(l->session, &out) > 0)
		;
}

static void resume_all(void)
{
	for (size_t i = 0; i < n_guests; i++)
		if (guests[i]->st.link != NULL && guests[i]->st.paused)
			h2_stream_pause(&guests[i]->st, false);
}

static bool link_feed(struct h2_link *l, const uint8_t *data, size_t n)
{
	uint8_t *copy = malloc(n + 1);
	CGN_MUST(copy != NULL);
	if (n > 0)
		memcpy(copy, data, n);
	bool alive = h2_link_feed(l, copy, n);
	free(copy);
	return alive && h2_link_turn(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct cgn_loop *loop;
	if (loop == NULL)
		CGN_MUST(cgn_ok(cgn_loop_new(&loop, NULL)));
	if (n < 2)
		return 0;
	style = data[0];
	bool server = (style & 16) == 0;
	struct http_wire w;
	struct http_store *spare = NULL;
	struct h2_link l;
	struct h2_link_cfg cfg = {.server = server,
		.max_streams = MAX_STREAMS,
		.max_head_bytes = 4096,
		.max_fields = 100,
		.reset_burst = 100,
		.reset_rate = 10};
	http_wire_init(&w, loop, NULL, on_turn);
	h2_link_init(&l, &cfg, &ops, &w, &spare);
	if (!server)
		link_ask(&l);
	bool alive =
		!server || link_feed(&l, (const uint8_t *)NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
	size_t half = n / 2;
	if (alive && link_feed(&l, data + 1, half)) {
		resume_all();
		(void)(h2_link_turn(&l) && link_feed(&l, data + 1 + half, n - 1 - half));
	}
	for (size_t i = 0; i < n_guests; i++) {
		h2_stream_fini(&guests[i]->st);
		free(guests[i]);
	}
	n_guests = 0;
	h2_link_fini(&l);
	http_wire_fini(&w);
	http_store_free(&spare);
	return 0;
}
