/* SPDX-License-Identifier: Apache-2.0 */
/* line: one request of a batch's input, one answer of its output, and the journal between them. */
#include "base/json/json.h"
#include "base/sum/sum.h"
#include "policy/answer/batch/batch.h"

#define LINE_ARENA ((size_t)8192)

static CGN_RC line_texts(struct json_val v, const char *endpoint, struct batch_line *out, const char **code,
	struct cgn_err *err)
{
	struct cgn_arena a;
	cgn_arena_init(&a, LINE_ARENA);
	struct cgn_str id = json_get_str(v, "custom_id", &a), method = json_get_str(v, "method", &a),
		       url = json_get_str(v, "url", &a);
	bool id_ok = id.n > 0 && cgn_str_copyz(out->custom_id, sizeof out->custom_id, id) &&
		memchr(id.p, '\0', id.n) == NULL;
	bool post = cgn_str_is(method, "POST"), fits = cgn_str_is(url, endpoint);
	cgn_arena_fini(&a);
	if (!id_ok) {
		*code = "invalid_custom_id";
		return CGN_FAIL(err, INVALID, "custom_id must be a string of 1 to %d bytes",
			BATCH_CUSTOM_MAX);
	}
	if (!post) {
		*code = "invalid_method";
		return CGN_FAIL(err, INVALID, "method must be \"POST\"");
	}
	if (!fits) {
		*code = "mismatched_endpoint";
		return CGN_FAIL(err, INVALID, "url must be the endpoint of the batch, %s", endpoint);
	}
	return CGN_OK;
}

CGN_RC batch_line_read(struct cgn_str text, const char *endpoint, struct batch_line *out, const char **code,
	struct cgn_err *err)
{
	struct json_val v, body, stream;
	*code = "invalid_json_line";
	CGN_TRY(json_parse(text, &v, NULL, err));
	if (v.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "the line is not a JSON object");
	CGN_TRY(line_texts(v, endpoint, out, code, err));
	*code = "invalid_body";
	if (!json_get(v, "body", &body) || body.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "body must be a JSON object");
	if (json_get(body, "stream", &stream) && json_bool(stream, false))
		return CGN_FAIL(err, INVALID, "body has \"stream\": true, which a batch cannot have");
	out->body = body.raw;
	return CGN_OK;
}

/* ---- answers ---- */

static void response_put(const struct batch_answer *a, struct json_out *j)
{
	struct json_val v;
	json_key(j, "response");
	if (a->status == 0) {
		json_put_null(j);
		return;
	}
	json_open(j, '{');
	json_key_u64(j, "status_code", (uint64_t)a->status);
	json_key_str(j, "request_id", a->request_id);
	json_key(j, "body");
	if (cgn_ok(json_parse(a->body, &v, NULL, NULL)))
		json_put_flat(j, v.raw);
	else
		json_put_str(j, a->body);
	json_close(j, '}');
}

void batch_answer_put(const struct batch_answer *a, struct cgn_buf *out)
{
	char id[BATCH_ID_MAX + 32];
	struct json_out j = json_out_to(out);
	(void)snprintf(id, sizeof id, "batch_req_%s_%llu", a->batch_id, (unsigned long long)a->line + 1);
	json_open(&j, '{');
	json_key_z(&j, "id", id);
	json_key_z(&j, "custom_id", a->custom_id);
	response_put(a, &j);
	json_key(&j, "error");
	if (a->status > 0) {
		json_put_null(&j);
	} else {
		json_open(&j, '{');
		json_key_z(&j, "code", a->code);
		json_key_z(&j, "message", a->message);
		json_close(&j, '}');
	}
	json_close(&j, '}');
	cgn_buf_char(out, '\n');
}

/* ---- the journal ---- */

#define SUM_DIGITS 16
#define HEAD_MAX   96
/* A record of a try has the number of its line plus this. An earlier version takes any record for an answer of its line, and
 * finds no line of that number. */
#define TRIED_FROM (1ULL << 40)

static char record_kind(const struct batch_record *r)
{
	if (r->tried)
		return 't';
	return r->failed ? 'e' : 'o';
}

void batch_record_put(const struct batch_record *r, struct cgn_buf *out)
{
	char head[HEAD_MAX];
	int n = snprintf(head, sizeof head, " %llu %c %zu\n",
		(unsigned long long)r->line + (r->tried ? TRIED_FROM : 0), record_kind(r), r->text.n);
	const struct iovec pieces[] = {{head, (size_t)n}, {(void *)(uintptr_t)r->text.p, r->text.n}};
	cgn_buf_fmt(out, "%016llx", (unsigned long long)sum64_pieces(pieces, CGN_COUNT(pieces)));
	cgn_buf_add(out, head, (size_t)n);
	cgn_buf_str(out, r->text);
}

bool batch_record_next(struct cgn_str *rest, struct batch_record *out)
{
	const char *end = rest->n > 0 ? memchr(rest->p, '\n', rest->n < HEAD_MAX ? rest->n : HEAD_MAX) : NULL;
	if (end == NULL || end - rest->p < SUM_DIGITS)
		return false;
	struct cgn_str head = {rest->p + SUM_DIGITS, (size_t)(end - rest->p) - SUM_DIGITS};
	size_t left = rest->n - (size_t)(end + 1 - rest->p);
	struct cgn_str sum = {rest->p, SUM_DIGITS}, words = head;
	uint64_t length = 0;
	(void)cgn_str_split(&words, ' ');
	struct cgn_str number = cgn_str_split(&words, ' '), kind = cgn_str_split(&words, ' ');
	char want[SUM_DIGITS + 1];
	if (!cgn_str_u64(number, &out->line) || !cgn_str_u64(words, &length) || length > left ||
		length > BATCH_RECORD_MAX)
		return false;
	const struct iovec pieces[] = {{(void *)(uintptr_t)head.p, head.n + 1},
		{(void *)(uintptr_t)(end + 1), length}};
	(void)snprintf(want, sizeof want, "%016llx",
		(unsigned long long)sum64_pieces(pieces, CGN_COUNT(pieces)));
	if (!cgn_str_is(sum, want))
		return false;
	out->failed = cgn_str_is(kind, "e");
	out->tried = cgn_str_is(kind, "t") && out->line >= TRIED_FROM;
	out->line -= out->tried ? TRIED_FROM : 0;
	out->text = (struct cgn_str){end + 1, length};
	*rest = (struct cgn_str){end + 1 + length, left - length};
	return true;
}
