/* SPDX-License-Identifier: Apache-2.0 */
#include "router/request/attempt/opening.h"

#include "base/sse/sse.h"

#define HELD_MOST    ((size_t)1024 * 1024) /* Bytes of an answer whose owner waits for something else. */
#define DECODED_MOST ((size_t)256 * 1024)  /* Bytes of an encoded answer that are looked into. */

static struct cgn_str header_find(const struct gw_attempt *a, const char *name)
{
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, cgn_str_of(name)))
			return cgn_str_trim(a->headers[i].value);
	return (struct cgn_str){NULL, 0};
}

/* ---- encoded answers ---- */

static void decoder_begin(struct gw_attempt *a)
{
	struct gw_opening *o = &a->opening;
	enum coding_kind kind = coding_of(CODING_IDENTITY, header_find(a, "content-encoding"));
	if (kind == CODING_IDENTITY || o->reader.says != OPENING_MORE)
		return;
	if (kind == CODING_OTHER || !cgn_ok(coding_open(kind, &o->decoder, NULL)))
		o->reader.says = OPENING_ANSWER;
}

/* Judge an answer that could not be decoded. It passes as it is, because clients read more ways of deflate and zstd; but no client
 * reads a damaged gzip. */
static enum opening_says undecoded_says(const struct gw_attempt *a)
{
	bool gzip = coding_of(CODING_IDENTITY, header_find(a, "content-encoding")) == CODING_GZIP;
	return gzip && a->opening.route == OPENING_JSON ? OPENING_ALIEN : OPENING_ANSWER;
}

/* Decode until the verdict. An answer that says little in many bytes passes. */
static void decoder_read(struct gw_attempt *a, struct cgn_str data)
{
	struct gw_opening *o = &a->opening;
	char room[4096];
	size_t n = sizeof room;
	while (o->reader.says == OPENING_MORE && n == sizeof room) {
		cgn_rc rc = coding_read(o->decoder, &data, room, sizeof room, &n, NULL);
		o->decoded += n;
		if (o->decoded > DECODED_MOST)
			o->reader.says = OPENING_ANSWER;
		else if (opening_feed(&o->reader, (struct cgn_str){room, n}) == OPENING_MORE && !cgn_ok(rc))
			o->reader.says = rc.code == CGN_INVALID ? undecoded_says(a) : OPENING_ANSWER;
	}
	if (o->reader.says != OPENING_MORE)
		coding_close(&o->decoder);
}

/* ---- the opening ---- */

void gw_opening_head(struct gw_attempt *a)
{
	bool judged = opening_status(a->status) == STATUS_JUDGED;
	opening_init(&a->opening.reader, judged ? a->opening.route : OPENING_WHATEVER, a->opening.answers,
		header_find(a, "content-type"));
	a->opening.page =
		!judged && a->opening.route == OPENING_JSON && a->opening.reader.says == OPENING_ALIEN;
	if (!judged)
		a->opening.reader.says = OPENING_ANSWER; /* A page of HTML, too. */
	decoder_begin(a);
}

void gw_opening_read(struct gw_attempt *a, struct cgn_str data)
{
	if (a->opening.decoder != NULL)
		decoder_read(a, data);
	else
		(void)opening_feed(&a->opening.reader, data);
}

static bool is_held(const struct gw_opening *o)
{
	return o->bytes.p != NULL && o->bytes.p == o->held.p;
}

static void held_add(struct gw_opening *o, struct cgn_str data)
{
	o->held.limit = HELD_MOST;
	cgn_buf_str(&o->held, data);
	o->bytes = cgn_buf_view(&o->held);
}

/* Too much is held: drop what says nothing, such as comments that keep the connection alive. An answer whose length was told must
 * keep its bytes. */
static void blank_drop(struct gw_attempt *a)
{
	struct gw_opening *o = &a->opening;
	if (o->decoder != NULL || header_find(a, "content-length").p != NULL)
		return;
	size_t n = opening_blank(&o->reader, o->bytes);
	if (is_held(o)) {
		cgn_buf_eat(&o->held, n);
		o->bytes = cgn_buf_view(&o->held);
	} else {
		o->bytes = (struct cgn_str){o->bytes.p + n, o->bytes.n - n};
	}
	if (o->bytes.n == 0)
		o->bytes.p = NULL;
}

bool gw_opening_data(struct gw_attempt *a, struct cgn_str data)
{
	struct gw_opening *o = &a->opening;
	gw_opening_read(a, data);
	if (o->since == 0)
		o->since = cgn_loop_now(a->w->loop);
	if (o->bytes.p == NULL)
		o->bytes = data;
	else
		held_add(o, data);
	if (o->held.bad) {
		gw_attempt_refuse(a, CGN_NO_MEMORY);
		return false;
	}
	if (o->reader.says == OPENING_MORE && o->bytes.n >= GW_OPENING_MAX)
		blank_drop(a);
	return o->reader.says != OPENING_MORE || o->bytes.n >= GW_OPENING_MAX;
}

void gw_opening_keep(struct gw_attempt *a)
{
	struct gw_opening *o = &a->opening;
	if (o->bytes.p == NULL || is_held(o))
		return;
	held_add(o, o->bytes);
	if (o->held.bad)
		gw_attempt_refuse(a, CGN_NO_MEMORY);
}

void gw_opening_drop(struct gw_attempt *a)
{
	cgn_buf_fini(&a->opening.held);
	a->opening.bytes = (struct cgn_str){NULL, 0};
}

/* Return true if the first event of a stream has begun and is not whole. Clients get whole events, so nothing is lost while
 * another engine can still be asked. */
static bool is_in_event(const struct gw_attempt *a)
{
	struct cgn_str read = a->opening.bytes;
	if (!a->events || a->status != 200 || read.n == 0 || header_find(a, "content-encoding").n > 0)
		return false;
	const char *data = memmem(read.p, read.n, "data:", 5);
	return data != NULL && sse_border(read, (size_t)(data - read.p)) == 0;
}

enum opening_says gw_opening_says(struct gw_attempt *a)
{
	struct opening *o = &a->opening.reader;
	if (!a->head_seen)
		return OPENING_MORE;
	if (a->call.closed && a->call.why.code == CGN_FINE) {
		bool broken = o->says == OPENING_ANSWER && is_in_event(a) &&
			opening_tail_breaks_off(a->opening.bytes, true);
		return broken ? OPENING_EMPTY : opening_end(o);
	}
	bool late = a->opening.bytes.p != NULL &&
		cgn_since(cgn_loop_now(a->w->loop), a->opening.since) >= GW_OPENING_WAIT;
	if (late || a->opening.bytes.n >= GW_OPENING_MAX)
		return opening_give_up(o);
	return o->says == OPENING_ANSWER && is_in_event(a) ? OPENING_MORE : o->says;
}

bool gw_opening_failed(struct gw_attempt *a)
{
	enum opening_says says = a->head_seen ? opening_end(&a->opening.reader) : OPENING_ANSWER;
	return says >= OPENING_ERROR;
}
