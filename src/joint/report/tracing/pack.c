/* SPDX-License-Identifier: Apache-2.0 */
/* pack: OTLP's messages (proto/otlp). Spans are packed one by one as they end, so the messages around them are put
 * together from packed parts: a tag, a length, the bytes. */
#include <string.h>
#include <unistd.h>

#include "base/pb/pb.h"
#include "joint/report/tracing/tracing_priv.h"
#include "otlp/otlp.pb-c.h"

#define TEXT_MOST ((size_t)4096)

enum {                                   /* Tags of fields with a length. */
	TAG_RESOURCE_SPANS = 1 << 3 | 2, /* field of a request */
	TAG_RESOURCE = 1 << 3 | 2,       /* field of resource spans */
	TAG_SCOPE_SPANS = 2 << 3 | 2,
	TAG_SCOPE = 1 << 3 | 2, /* field of scope spans */
	TAG_SPAN = 2 << 3 | 2,
};

static size_t lead_put(uint8_t to[12], uint8_t tag, size_t n)
{
	size_t at = 0;
	to[at++] = tag;
	for (; n >= 128; n >>= 7)
		to[at++] = (uint8_t)(n | 128);
	to[at++] = (uint8_t)n;
	return at;
}

static void part_add(struct cgn_buf *out, uint8_t tag, struct cgn_str bytes)
{
	uint8_t lead[12];
	cgn_buf_add(out, lead, lead_put(lead, tag, bytes.n));
	cgn_buf_add(out, bytes.p, bytes.n);
}

/* ---- resource ---- */

#define RESOURCE_MOST 64
struct resource {
	CgnOtlp__KeyValue row[RESOURCE_MOST], *list[RESOURCE_MOST];
	CgnOtlp__AnyValue value[RESOURCE_MOST];
	size_t n;
	struct cgn_arena *arena;
};

static bool resource_take(void *user, struct cgn_str key, struct cgn_str value)
{
	struct resource *r = user;
	char *k = cgn_arena_strz(r->arena, key), *v = cgn_arena_strz(r->arena, value);
	if (k == NULL || v == NULL || r->n == RESOURCE_MOST || !cgn_utf8_valid(v, value.n))
		return false;
	cgn_otlp__any_value__init(&r->value[r->n]);
	r->value[r->n].value_case = CGN_OTLP__ANY_VALUE__VALUE_TEXT;
	r->value[r->n].text = v;
	cgn_otlp__key_value__init(&r->row[r->n]);
	r->row[r->n].key = k;
	r->row[r->n].value = &r->value[r->n];
	r->list[r->n] = &r->row[r->n];
	r->n++;
	return true;
}

bool tracing_resource_pack(const struct tracing_settings *s, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena arena;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {0};
	CgnOtlp__Resource resource = CGN_OTLP__RESOURCE__INIT;
	struct resource r = {.arena = &arena};
	char host[128] = "", pid[24];
	cgn_arena_init(&arena, 256 * 1024);
	(void)gethostname(host, sizeof host - 1);
	(void)snprintf(pid, sizeof pid, "%ld", (long)getpid());
	bool taken = resource_take(&r, CGN_STR("service.name"), cgn_str_of(s->service)) &&
		resource_take(&r, CGN_STR("service.version"), CGN_STR(CGN_VERSION)) &&
		resource_take(&r, CGN_STR("host.name"), cgn_str_of(host)) &&
		resource_take(&r, CGN_STR("process.pid"), cgn_str_of(pid)) &&
		(s->resource == NULL || tracing_list_each(s->resource, &arena, resource_take, &r));
	resource.attributes = r.list;
	resource.n_attributes = r.n;
	pb_pack(&resource, &bytes);
	part_add(out, TAG_RESOURCE, cgn_buf_view(&bytes));
	return taken && !bytes.bad && !out->bad;
}

/* ---- a span ---- */

static void id_put(uint8_t to[8], uint64_t v)
{
	for (size_t i = 0; i < 8; i++)
		to[i] = (uint8_t)(v >> (56 - 8 * i));
}

/* Texts of a span in one place: OTLP's strings are UTF-8, and protobuf-c's end with a NUL. */
static char *text_keep(struct cgn_arena *a, struct cgn_str s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf shown = {0};
	s.n = s.n <= TEXT_MOST ? s.n : TEXT_MOST;
	s.n = cgn_utf8_valid(s.p, s.n) ? s.n : cgn_utf8_prefix(s.p, s.n);
	cgn_buf_shown(&shown, s);
	char *copy = cgn_arena_strz(a, cgn_buf_view(&shown));
	return copy != NULL ? copy : pb_text("");
}

static void value_fill(const struct tracing_attribute *a, struct cgn_arena *arena, CgnOtlp__AnyValue *v)
{
	cgn_otlp__any_value__init(v);
	switch (a->type) {
	case TRACING_TEXT:
		v->value_case = CGN_OTLP__ANY_VALUE__VALUE_TEXT;
		v->text = text_keep(arena, a->text);
		break;
	case TRACING_NUMBER:
		v->value_case = CGN_OTLP__ANY_VALUE__VALUE_NUMBER;
		v->number = a->number;
		break;
	case TRACING_REAL:
		v->value_case = CGN_OTLP__ANY_VALUE__VALUE_REAL;
		v->real = a->real;
		break;
	case TRACING_FLAG:
		v->value_case = CGN_OTLP__ANY_VALUE__VALUE_FLAG;
		v->flag = a->number != 0;
		break;
	}
}

void tracing_span_pack(const struct tracing_span *s, int64_t wall_offset, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena arena;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf bytes = {0};
	CgnOtlp__Span span = CGN_OTLP__SPAN__INIT;
	CgnOtlp__Status status = CGN_OTLP__STATUS__INIT;
	CgnOtlp__KeyValue row[TRACING_ATTRIBUTES], *list[TRACING_ATTRIBUTES];
	CgnOtlp__AnyValue value[TRACING_ATTRIBUTES];
	uint8_t id[8], parent[8];
	cgn_arena_init(&arena, 1024 * 1024);
	id_put(id, s->id);
	id_put(parent, s->parent);
	for (size_t i = 0; i < s->n; i++) {
		value_fill(&s->attributes[i], &arena, &value[i]);
		cgn_otlp__key_value__init(&row[i]);
		row[i].key = pb_text(s->attributes[i].key);
		row[i].value = &value[i];
		list[i] = &row[i];
	}
	span.trace_id = (ProtobufCBinaryData){TRACING_TRACE_BYTES, (uint8_t *)(uintptr_t)s->context->trace};
	span.span_id = (ProtobufCBinaryData){sizeof id, id};
	span.parent_span_id = (ProtobufCBinaryData){s->parent != 0 ? sizeof parent : 0, parent};
	span.name = text_keep(&arena, cgn_str_of(s->name));
	span.kind = s->kind;
	span.start_time_unix_nano = s->from + (uint64_t)wall_offset;
	span.end_time_unix_nano = (s->to > s->from ? s->to : s->from) + (uint64_t)wall_offset;
	span.attributes = list;
	span.n_attributes = s->n;
	span.flags = s->context->sampled ? 1 : 0;
	if (s->error != NULL) {
		status.code = 2;
		status.message = text_keep(&arena, cgn_str_of(s->error));
		span.status = &status;
	}
	pb_pack(&span, &bytes);
	part_add(out, TAG_SPAN, cgn_buf_view(&bytes));
	out->bad = out->bad || bytes.bad;
}

/* ---- a request ---- */

void tracing_request_pack(const struct tracing *t, struct cgn_str spans, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf scope = {0}, name = {0}, all = {0};
	CgnOtlp__Scope who = CGN_OTLP__SCOPE__INIT;
	who.name = pb_text("cognitora");
	who.version = pb_text(CGN_VERSION);
	pb_pack(&who, &name);
	part_add(&scope, TAG_SCOPE, cgn_buf_view(&name));
	cgn_buf_str(&scope, spans);
	cgn_buf_str(&all, (struct cgn_str){t->resource.p, t->resource.n});
	part_add(&all, TAG_SCOPE_SPANS, cgn_buf_view(&scope));
	if (t->settings.grpc) { /* A message that is not compressed, and its length. */
		uint8_t lead[12];
		size_t n = all.n + lead_put(lead, TAG_RESOURCE_SPANS, all.n);
		const uint8_t prefix[5] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8),
			(uint8_t)n};
		cgn_buf_add(out, prefix, sizeof prefix);
	}
	part_add(out, TAG_RESOURCE_SPANS, cgn_buf_view(&all));
	out->bad = out->bad || all.bad || scope.bad || name.bad;
}
