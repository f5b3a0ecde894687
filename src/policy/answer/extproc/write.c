/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pb/pb.h"
#include "envoy/ext_proc.pb-c.h"
#include "policy/answer/extproc/extproc.h"

#define ENDPOINT "x-gateway-destination-endpoint"
#define SPACE    "envoy.lb"

/* Header fields that are set: a field, its option, and their list. */
struct set {
	Extproc__HeaderValue value[3];
	Extproc__HeaderValueOption option[3];
	Extproc__HeaderValueOption *list[3];
	Extproc__HeaderMutation mutation;
};

static void set_begin(struct set *s)
{
	extproc__header_mutation__init(&s->mutation);
	s->mutation.set_headers = s->list;
}

static void set_add(struct set *s, const char *name, const char *value)
{
	size_t i = s->mutation.n_set_headers++;
	CGN_MUST(i < CGN_COUNT(s->list));
	extproc__header_value__init(&s->value[i]);
	extproc__header_value_option__init(&s->option[i]);
	s->value[i].key = pb_text(name);
	s->value[i].raw_value = (ProtobufCBinaryData){strlen(value), (uint8_t *)pb_text(value)};
	s->option[i].header = &s->value[i];
	s->option[i].append_action = EXTPROC__HEADER_VALUE_OPTION__APPEND_ACTION__OVERWRITE_IF_EXISTS_OR_ADD;
	s->list[i] = &s->option[i];
}

/* The pick as header fields and as metadata; the extension wants both, with equal values. */
struct picked {
	struct set set;
	char length[24];
	Extproc__Value endpoint, inner;
	Extproc__Struct space, outer;
	Extproc__Struct__FieldsEntry entry, top;
	Extproc__Struct__FieldsEntry *entries[1], *tops[1];
};

static void picked_make(struct picked *p, const struct extproc_pick *pick)
{
	set_begin(&p->set);
	set_add(&p->set, ENDPOINT, pick->endpoints);
	if (pick->length >= 0) {
		(void)snprintf(p->length, sizeof p->length, "%lld", (long long)pick->length);
		set_add(&p->set, "content-length", p->length);
	}
	extproc__value__init(&p->endpoint);
	extproc__value__init(&p->inner);
	extproc__struct__init(&p->space);
	extproc__struct__init(&p->outer);
	extproc__struct__fields_entry__init(&p->entry);
	extproc__struct__fields_entry__init(&p->top);
	p->endpoint.kind_case = EXTPROC__VALUE__KIND_STRING_VALUE;
	p->endpoint.string_value = pb_text(pick->endpoints);
	p->entry.key = pb_text(ENDPOINT);
	p->entry.value = &p->endpoint;
	p->entries[0] = &p->entry;
	p->space.n_fields = 1;
	p->space.fields = p->entries;
	p->inner.kind_case = EXTPROC__VALUE__KIND_STRUCT_VALUE;
	p->inner.struct_value = &p->space;
	p->top.key = pb_text(SPACE);
	p->top.value = &p->inner;
	p->tops[0] = &p->top;
	p->outer.n_fields = 1;
	p->outer.fields = p->tops;
}

void extproc_put_head(enum extproc_kind kind, const struct extproc_pick *pick, struct cgn_buf *out)
{
	struct picked p;
	Extproc__ProcessingResponse m = EXTPROC__PROCESSING_RESPONSE__INIT;
	Extproc__HeadersResponse head = EXTPROC__HEADERS_RESPONSE__INIT;
	Extproc__CommonResponse common = EXTPROC__COMMON_RESPONSE__INIT;
	if (kind == EXTPROC_REQUEST_HEAD) {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_HEADERS;
		m.request_headers = &head;
	} else {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_RESPONSE_HEADERS;
		m.response_headers = &head;
	}
	head.response = &common;
	if (pick != NULL) {
		picked_make(&p, pick);
		common.header_mutation = &p.set.mutation;
		m.dynamic_metadata = &p.outer;
	}
	pb_pack(&m, out);
}

static void body_put(enum extproc_kind kind, Extproc__CommonResponse *common, Extproc__Struct *metadata,
	struct cgn_buf *out)
{
	Extproc__ProcessingResponse m = EXTPROC__PROCESSING_RESPONSE__INIT;
	Extproc__BodyResponse body = EXTPROC__BODY_RESPONSE__INIT;
	body.response = common;
	m.dynamic_metadata = metadata;
	if (kind == EXTPROC_REQUEST_BODY) {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_BODY;
		m.request_body = &body;
	} else {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_RESPONSE_BODY;
		m.response_body = &body;
	}
	pb_pack(&m, out);
}

void extproc_put_piece(enum extproc_kind kind, struct cgn_str bytes, bool last, struct cgn_buf *out)
{
	Extproc__CommonResponse common = EXTPROC__COMMON_RESPONSE__INIT;
	Extproc__BodyMutation change = EXTPROC__BODY_MUTATION__INIT;
	Extproc__StreamedBodyResponse piece = EXTPROC__STREAMED_BODY_RESPONSE__INIT;
	piece.body = (ProtobufCBinaryData){bytes.n, (uint8_t *)(uintptr_t)bytes.p};
	piece.end_of_stream = last;
	change.mutation_case = EXTPROC__BODY_MUTATION__MUTATION_STREAMED_RESPONSE;
	change.streamed_response = &piece;
	common.body_mutation = &change;
	body_put(kind, &common, NULL, out);
}

void extproc_put_body(enum extproc_kind kind, const struct extproc_pick *pick, struct cgn_str body,
	struct cgn_buf *out)
{
	struct picked p;
	Extproc__CommonResponse common = EXTPROC__COMMON_RESPONSE__INIT;
	Extproc__BodyMutation change = EXTPROC__BODY_MUTATION__INIT;
	Extproc__Struct *metadata = NULL;
	if (pick != NULL) {
		picked_make(&p, pick);
		common.header_mutation = &p.set.mutation;
		metadata = &p.outer;
	}
	if (body.p != NULL) {
		change.mutation_case = EXTPROC__BODY_MUTATION__MUTATION_BODY;
		change.body = (ProtobufCBinaryData){body.n, (uint8_t *)(uintptr_t)body.p};
		common.body_mutation = &change;
	}
	body_put(kind, &common, metadata, out);
}

void extproc_put_trailers(enum extproc_kind kind, struct cgn_buf *out)
{
	Extproc__ProcessingResponse m = EXTPROC__PROCESSING_RESPONSE__INIT;
	Extproc__TrailersResponse t = EXTPROC__TRAILERS_RESPONSE__INIT;
	if (kind == EXTPROC_REQUEST_TRAILERS) {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_REQUEST_TRAILERS;
		m.request_trailers = &t;
	} else {
		m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_RESPONSE_TRAILERS;
		m.response_trailers = &t;
	}
	pb_pack(&m, out);
}

void extproc_put_refusal(int status, struct cgn_str json, unsigned retry_after, const char *details,
	struct cgn_buf *out)
{
	struct set set;
	char seconds[16];
	Extproc__ProcessingResponse m = EXTPROC__PROCESSING_RESPONSE__INIT;
	Extproc__ImmediateResponse now = EXTPROC__IMMEDIATE_RESPONSE__INIT;
	Extproc__HttpStatus code = EXTPROC__HTTP_STATUS__INIT;
	set_begin(&set);
	set_add(&set, "content-type", "application/json");
	if (retry_after > 0) {
		(void)snprintf(seconds, sizeof seconds, "%u", retry_after);
		set_add(&set, "retry-after", seconds);
	}
	code.code = status;
	now.status = &code;
	now.headers = &set.mutation;
	now.body = (ProtobufCBinaryData){json.n, (uint8_t *)(uintptr_t)json.p};
	now.details = pb_text(details);
	m.response_case = EXTPROC__PROCESSING_RESPONSE__RESPONSE_IMMEDIATE_RESPONSE;
	m.immediate_response = &now;
	pb_pack(&m, out);
}
