/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pb/pb.h"
#include "envoy/ext_proc.pb-c.h"
#include "policy/answer/extproc/extproc.h"

#define SUBSET_SPACE "envoy.lb.subset_hint"
#define SUBSET_KEY   "x-gateway-destination-endpoint-subset"
#define SERVED_SPACE "envoy.lb"
#define SERVED_KEY   "x-gateway-destination-endpoint-served"

static enum extproc_mode mode_of(Extproc__BodyMode mode)
{
	switch (mode) {
	case EXTPROC__BODY_MODE__BODY_NONE:
		return EXTPROC_NO_BODY;
	case EXTPROC__BODY_MODE__BODY_STREAMED:
		return EXTPROC_PIECES;
	case EXTPROC__BODY_MODE__BODY_BUFFERED:
	case EXTPROC__BODY_MODE__BODY_BUFFERED_PARTIAL:
		return EXTPROC_WHOLE;
	case EXTPROC__BODY_MODE__BODY_FULL_DUPLEX_STREAMED:
		return EXTPROC_DUPLEX;
	case _EXTPROC__BODY_MODE_IS_INT_SIZE:
		break;
	}
	return EXTPROC_NO_BODY;
}

static void body_take(struct extproc_message *out, const Extproc__HttpBody *b)
{
	out->body = (struct cgn_str){(const char *)b->body.data, b->body.len};
	out->last = b->end_of_stream;
}

static bool request_take(struct extproc_message *out, const Extproc__ProcessingRequest *rq)
{
	switch (rq->request_case) {
	case EXTPROC__PROCESSING_REQUEST__REQUEST_REQUEST_HEADERS:
		out->kind = EXTPROC_REQUEST_HEAD;
		out->last = rq->request_headers->end_of_stream;
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST_RESPONSE_HEADERS:
		out->kind = EXTPROC_ANSWER_HEAD;
		out->last = rq->response_headers->end_of_stream;
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST_REQUEST_BODY:
		out->kind = EXTPROC_REQUEST_BODY;
		body_take(out, rq->request_body);
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST_RESPONSE_BODY:
		out->kind = EXTPROC_ANSWER_BODY;
		body_take(out, rq->response_body);
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST_REQUEST_TRAILERS:
		out->kind = EXTPROC_REQUEST_TRAILERS;
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST_RESPONSE_TRAILERS:
		out->kind = EXTPROC_ANSWER_TRAILERS;
		return true;
	case EXTPROC__PROCESSING_REQUEST__REQUEST__NOT_SET:
	case _EXTPROC__PROCESSING_REQUEST__REQUEST__CASE_IS_INT_SIZE:
		break;
	}
	return false;
}

CGN_RC extproc_read(struct cgn_str bytes, struct extproc_message *out, struct cgn_err *err)
{
	Extproc__ProcessingRequest *rq = NULL;
	*out = (struct extproc_message){0};
	CGN_TRY(pb_unpack(&extproc__processing_request__descriptor, bytes, &rq, err));
	out->pb = rq;
	out->observes = rq->observability_mode;
	if (rq->protocol_config != NULL) {
		out->request_mode = mode_of(rq->protocol_config->request_body_mode);
		out->answer_mode = mode_of(rq->protocol_config->response_body_mode);
	}
	if (!request_take(out, rq))
		return CGN_FAIL(err, INVALID, "the message has neither head nor body nor trailers");
	return CGN_OK;
}

void extproc_fini(struct extproc_message *m)
{
	Extproc__ProcessingRequest *rq = m->pb;
	m->pb = NULL;
	pb_free(&rq);
}

/* ---- fields ---- */

static const Extproc__HeaderMap *map_of(const struct extproc_message *m)
{
	const Extproc__ProcessingRequest *rq = m->pb;
	if (rq != NULL && rq->request_case == EXTPROC__PROCESSING_REQUEST__REQUEST_REQUEST_HEADERS)
		return rq->request_headers->headers;
	if (rq != NULL && rq->request_case == EXTPROC__PROCESSING_REQUEST__REQUEST_RESPONSE_HEADERS)
		return rq->response_headers->headers;
	return NULL;
}

size_t extproc_fields(const struct extproc_message *m)
{
	const Extproc__HeaderMap *map = map_of(m);
	return map != NULL ? map->n_headers : 0;
}

/* Return the field |i|; NULL: there are not so many. */
static const Extproc__HeaderValue *field_at(const struct extproc_message *m, size_t i)
{
	const Extproc__HeaderMap *map = map_of(m);
	return map != NULL && i < map->n_headers ? map->headers[i] : NULL;
}

struct cgn_str extproc_field_name(const struct extproc_message *m, size_t i)
{
	const Extproc__HeaderValue *h = field_at(m, i);
	return cgn_str_of(h != NULL ? h->key : "");
}

struct cgn_str extproc_field_value(const struct extproc_message *m, size_t i)
{
	const Extproc__HeaderValue *h = field_at(m, i);
	if (h == NULL || h->value[0] != '\0' || h->raw_value.len == 0)
		return cgn_str_of(h != NULL ? h->value : "");
	return (struct cgn_str){(const char *)h->raw_value.data, h->raw_value.len};
}

struct cgn_str extproc_field(const struct extproc_message *m, const char *name)
{
	for (size_t i = 0; i < extproc_fields(m); i++)
		if (cgn_str_is(extproc_field_name(m, i), name))
			return extproc_field_value(m, i);
	return (struct cgn_str){NULL, 0};
}

/* ---- metadata ---- */

static const Extproc__Value *value_find(const Extproc__Struct *s, const char *key)
{
	for (size_t i = 0; s != NULL && i < s->n_fields; i++)
		if (strcmp(s->fields[i]->key, key) == 0)
			return s->fields[i]->value;
	return NULL;
}

static const Extproc__Value *metadata_find(const struct extproc_message *m, const char *space,
	const char *key)
{
	const Extproc__ProcessingRequest *rq = m->pb;
	const Extproc__Metadata *all = rq != NULL ? rq->metadata_context : NULL;
	for (size_t i = 0; all != NULL && i < all->n_filter_metadata; i++)
		if (strcmp(all->filter_metadata[i]->key, space) == 0)
			return value_find(all->filter_metadata[i]->value, key);
	return NULL;
}

static void endpoint_put(const Extproc__Value *v, struct cgn_buf *out)
{
	if (v == NULL || v->kind_case != EXTPROC__VALUE__KIND_STRING_VALUE || v->string_value[0] == '\0')
		return;
	if (out->n > 0)
		cgn_buf_putz(out, ",");
	cgn_buf_putz(out, v->string_value);
}

bool extproc_subset(const struct extproc_message *m, struct cgn_buf *out)
{
	const Extproc__Value *v = metadata_find(m, SUBSET_SPACE, SUBSET_KEY);
	if (v == NULL)
		return false;
	endpoint_put(v, out); /* Older proxies send one text. */
	if (v->kind_case == EXTPROC__VALUE__KIND_LIST_VALUE)
		for (size_t i = 0; i < v->list_value->n_values; i++)
			endpoint_put(v->list_value->values[i], out);
	return true;
}

struct cgn_str extproc_served(const struct extproc_message *m)
{
	const Extproc__Value *v = metadata_find(m, SERVED_SPACE, SERVED_KEY);
	if (v == NULL || v->kind_case != EXTPROC__VALUE__KIND_STRING_VALUE)
		return (struct cgn_str){NULL, 0};
	return cgn_str_of(v->string_value);
}
