/* SPDX-License-Identifier: Apache-2.0 */
/* object: a batch as clients see it, and as its file has it. */
#include "base/json/json.h"
#include "base/seal/seal.h"
#include "policy/answer/batch/batch.h"

#include <stdlib.h>

#define FILE_KIND   "cgn-batch"
#define FILE_FORMAT 1
#define FILE_ARENA  ((size_t)65536)

static const struct {
	const char *text;
	bool over;
} statuses[] = {
#define STATUS(id, text, over) {text, over},
#include "policy/answer/batch/status.def"
#undef STATUS
};
static const char *const time_keys[] = {
#define TIME(id, key) key,
#include "policy/answer/batch/times.def"
#undef TIME
};

const char *batch_status_text(enum batch_status s)
{
	return statuses[s].text;
}

bool batch_status_is_over(enum batch_status s)
{
	return statuses[s].over;
}

static enum batch_status status_find(struct cgn_str text)
{
	size_t i = 0;
	while (i < BATCH_STATUSES && !cgn_str_is(text, statuses[i].text))
		i++;
	return (enum batch_status)i;
}

void batch_fini(struct batch *b)
{
	free(b->metadata);
	free(b->holder);
	b->metadata = b->holder = NULL;
}

void batch_fault_add(struct batch *b, const char *code, uint64_t line, const char *message)
{
	if (b->n_faults == BATCH_ERRORS)
		return;
	struct batch_fault *f = &b->faults[b->n_faults++];
	(void)cgn_str_copyz(f->code, sizeof f->code, cgn_str_of(code));
	(void)cgn_str_copyz(f->message, sizeof f->message, cgn_str_of(message));
	f->line = line;
}

static void id_put(struct json_out *j, const char *key, const char *id, bool there)
{
	json_key(j, key);
	if (there)
		json_put_z(j, id);
	else
		json_put_null(j);
}

static void fault_put(const struct batch_fault *f, struct json_out *j)
{
	json_open(j, '{');
	json_key_z(j, "code", f->code);
	json_key_z(j, "message", f->message);
	json_key(j, "param");
	json_put_null(j);
	json_key(j, "line");
	if (f->line > 0)
		json_put_u64(j, f->line);
	else
		json_put_null(j);
	json_close(j, '}');
}

static void faults_put(const struct batch *b, struct json_out *j)
{
	json_key(j, "errors");
	if (b->n_faults == 0) {
		json_put_null(j);
		return;
	}
	json_open(j, '{');
	json_key_z(j, "object", "list");
	json_key_open(j, "data", '[');
	for (size_t i = 0; i < b->n_faults; i++)
		fault_put(&b->faults[i], j);
	json_close(j, ']');
	json_close(j, '}');
}

/* The members of the object, without its brackets. */
static void members_put(const struct batch *b, struct json_out *j)
{
	json_key_z(j, "id", b->id);
	json_key_z(j, "object", "batch");
	json_key_z(j, "endpoint", b->endpoint);
	faults_put(b, j);
	json_key_z(j, "input_file_id", b->input);
	json_key_z(j, "completion_window", b->window);
	json_key_z(j, "status", batch_status_text(b->status));
	id_put(j, "output_file_id", b->output, b->has_output);
	id_put(j, "error_file_id", b->error, b->has_error);
	for (size_t i = 0; i < BATCH_TIMES; i++) {
		json_key(j, time_keys[i]);
		if (b->times[i] > 0)
			json_put_u64(j, b->times[i]);
		else
			json_put_null(j);
	}
	json_key_open(j, "request_counts", '{');
	json_key_u64(j, "total", b->total);
	json_key_u64(j, "completed", b->completed);
	json_key_u64(j, "failed", b->failed);
	json_close(j, '}');
	json_key(j, "metadata");
	if (b->metadata != NULL)
		json_put_raw(j, cgn_str_of(b->metadata));
	else
		json_put_null(j);
}

void batch_put(const struct batch *b, struct json_out *j)
{
	json_open(j, '{');
	members_put(b, j);
	if (b->waits != BATCH_GOES && b->status == BATCH_IN_PROGRESS) {
		json_key_open(j, "waiting", '{');
		json_key_z(j, "for", batch_wait_text(b->waits));
		json_key_u64(j, "until", b->waits_until_s);
		json_close(j, '}');
	}
	json_close(j, '}');
}

void batch_file_put(const struct batch *b, struct cgn_buf *out)
{
	seal_begin(out, FILE_KIND, FILE_FORMAT);
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	members_put(b, &j);
	json_key_z(&j, "tenant", b->tenant);
	json_key_z(&j, "key", b->key);
	json_key_z(&j, "output", b->output);
	json_key_z(&j, "error", b->error);
	json_key_z(&j, "ending", batch_status_text(b->ending));
	if (b->holder != NULL) {
		json_key(&j, "holder");
		json_put_raw(&j, cgn_str_of(b->holder));
	}
	json_close(&j, '}');
	cgn_buf_char(out, '\n');
	seal_end(out);
}

static void faults_read(struct json_val root, struct batch *b, struct cgn_arena *a)
{
	struct json_val errors, data, one;
	if (!json_get(root, "errors", &errors) || !json_get(errors, "data", &data) || data.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(data);
	while (json_next_elem(&it, &one) && b->n_faults < BATCH_ERRORS) {
		struct batch_fault *f = &b->faults[b->n_faults++];
		(void)cgn_str_copyz(f->code, sizeof f->code, json_get_str(one, "code", a));
		(void)cgn_str_copyz(f->message, sizeof f->message, json_get_str(one, "message", a));
		f->line = json_get_u64(one, "line", 0);
	}
}

static void numbers_read(struct json_val root, struct batch *b)
{
	struct json_val v;
	for (size_t i = 0; i < BATCH_TIMES; i++)
		b->times[i] = json_get_u64(root, time_keys[i], 0);
	if (json_get(root, "request_counts", &v)) {
		b->total = json_get_u64(v, "total", 0);
		b->completed = json_get_u64(v, "completed", 0);
		b->failed = json_get_u64(v, "failed", 0);
	}
	b->has_output = json_get(root, "output_file_id", &v) && v.type == JSON_STRING;
	b->has_error = json_get(root, "error_file_id", &v) && v.type == JSON_STRING;
	if (json_get(root, "metadata", &v) && v.type == JSON_OBJECT)
		b->metadata = cgn_str_dupz(v.raw);
}

/* False: the holder is not an object, or there is no memory for it. */
static bool holder_read(struct json_val root, struct batch *b)
{
	struct json_val v;
	b->by_token = json_get(root, "holder", &v);
	if (!b->by_token)
		return true;
	b->holder = v.type == JSON_OBJECT ? cgn_str_dupz(v.raw) : NULL;
	return b->holder != NULL;
}

CGN_RC batch_file_read(struct cgn_str text, struct batch *out, struct cgn_err *err)
{
	struct cgn_str lines;
	struct json_val v;
	struct cgn_arena a;
	CGN_TRY(seal_open(text, FILE_KIND, FILE_FORMAT, &lines, err));
	CGN_TRY(json_parse(lines, &v, NULL, err));
	cgn_arena_init(&a, FILE_ARENA);
	const struct {
		const char *key;
		char *to;
		size_t cap;
	} texts[] = {{"id", out->id, sizeof out->id}, {"tenant", out->tenant, sizeof out->tenant},
		{"key", out->key, sizeof out->key}, {"endpoint", out->endpoint, sizeof out->endpoint},
		{"completion_window", out->window, sizeof out->window},
		{"input_file_id", out->input, sizeof out->input}, {"output", out->output, sizeof out->output},
		{"error", out->error, sizeof out->error}};
	bool fits = true;
	for (size_t i = 0; i < CGN_COUNT(texts); i++)
		fits = cgn_str_copyz(texts[i].to, texts[i].cap, json_get_str(v, texts[i].key, &a)) && fits;
	out->status = status_find(json_get_str(v, "status", &a));
	out->ending = status_find(json_get_str(v, "ending", &a));
	faults_read(v, out, &a);
	cgn_arena_fini(&a);
	numbers_read(v, out);
	fits = holder_read(v, out) && fits;
	if (fits && out->id[0] != '\0' && out->status < BATCH_STATUSES && out->ending < BATCH_STATUSES)
		return CGN_OK;
	batch_fini(out);
	return CGN_FAIL(err, INVALID, "a text in it is too long, or not known");
}

bool batch_metadata_ok(const struct json_val *v)
{
	struct cgn_str key;
	struct json_val value;
	if (v->type != JSON_OBJECT || v->raw.n > BATCH_METADATA_MAX)
		return false;
	struct json_iter it = json_iter_of(*v);
	size_t n = 0;
	while (json_next_member(&it, &key, &value))
		if (++n > 16 || value.type != JSON_STRING || key.n > 64 || value.raw.n > 514)
			return false;
	return true;
}
