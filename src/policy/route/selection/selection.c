/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/selection/selection.h"

enum member { MODEL, LORA, IDS, HASHES, ID, ANSWER, ALLOWED, PINNED, WORKER, MEMBERS };
static const char *const names[MEMBERS] = {
	[MODEL] = "model_name",
	[LORA] = "lora_name",
	[IDS] = "token_ids",
	[HASHES] = "block_hashes",
	[ID] = "selection_id",
	[ANSWER] = "expected_output_tokens",
	[ALLOWED] = "allowed_worker_ids",
	[PINNED] = "pinned_worker",
	[WORKER] = "worker_id",
};

static bool is_there(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL;
}

bool selection_id_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '/' || c == '?' || c == '%')
			return false;
	}
	return s.n > 0 && s.n <= SELECTION_ID_MAX;
}

static CGN_RC id_read(struct json_val v, char out[SELECTION_ID_MAX + 1], struct cgn_err *err)
{
	struct cgn_buf b = cgn_buf_over(out, SELECTION_ID_MAX + 1);
	out[0] = '\0';
	if (!is_there(v))
		return CGN_OK;
	if (v.type == JSON_STRING)
		json_str_to(v, &b);
	if (v.type != JSON_STRING || b.bad || !selection_id_is_ok(cgn_buf_view(&b)))
		return CGN_FAIL(err, INVALID,
			"selection_id is a string of 1 to %d visible ASCII characters without / ? %% \" and \\",
			SELECTION_ID_MAX);
	(void)cgn_buf_z(&b);
	return CGN_OK;
}

static CGN_RC workers_read(struct json_val v, struct json_val *out, struct cgn_err *err)
{
	size_t n = 0;
	bool fine = v.type == JSON_ARRAY;
	*out = (struct json_val){0};
	if (!is_there(v))
		return CGN_OK;
	struct json_iter it = fine ? json_iter_of(v) : (struct json_iter){0};
	for (struct json_val e; fine && json_next_elem(&it, &e); n++) {
		uint64_t number;
		fine = json_u64(e, &number) && n < SELECTION_WORKERS_MAX;
	}
	if (!fine)
		return CGN_FAIL(err, INVALID, "allowed_worker_ids is an array of at most %d numbers",
			SELECTION_WORKERS_MAX);
	*out = v;
	return CGN_OK;
}

static CGN_RC worker_read(const struct json_val v[MEMBERS], struct selection_ask *out, struct cgn_err *err)
{
	struct json_val number = v[WORKER];
	out->one = is_there(v[WORKER]) || is_there(v[PINNED]);
	if (!is_there(number) && is_there(v[PINNED]) && !json_get(v[PINNED], "worker_id", &number))
		return CGN_FAIL(err, INVALID, "pinned_worker is an object with worker_id");
	if (out->one && !json_u64(number, &out->worker))
		return CGN_FAIL(err, INVALID, "worker_id is a number, as a selection told it");
	return CGN_OK;
}

static CGN_RC prompt_read(const struct json_val v[MEMBERS], struct selection_ask *out, struct cgn_err *err)
{
	out->model = is_there(v[LORA]) ? v[LORA] : v[MODEL];
	out->ids = v[IDS];
	if (!is_there(out->model) || out->model.type != JSON_STRING)
		return CGN_FAIL(err, INVALID, "model_name is missing, or is not a string");
	if (!is_there(out->ids) && is_there(v[HASHES]))
		return CGN_FAIL(err, INVALID,
			"block_hashes alone do not name the blocks of this router: send token_ids, or the request itself with ?for=PATH");
	if (!is_there(out->ids) || out->ids.type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID,
			"token_ids is missing, or is not an array; the request itself is taken with ?for=PATH");
	return CGN_OK;
}

CGN_RC selection_read(struct cgn_str body, struct selection_ask *out, struct cgn_err *err)
{
	struct json_val whole, v[MEMBERS];
	*out = (struct selection_ask){0};
	CGN_TRY(json_parse(body, &whole, NULL, err));
	if (whole.type != JSON_OBJECT)
		return CGN_FAIL(err, INVALID, "the body is not a JSON object");
	json_pick(whole, names, MEMBERS, v);
	CGN_TRY(prompt_read(v, out, err));
	CGN_TRY(id_read(v[ID], out->id, err));
	CGN_TRY(workers_read(v[ALLOWED], &out->workers, err));
	CGN_TRY(worker_read(v, out, err));
	if (is_there(v[ANSWER]) && !json_u64(v[ANSWER], &out->answer_tokens))
		return CGN_FAIL(err, INVALID, "expected_output_tokens is a number");
	return CGN_OK;
}

void selection_request(const struct selection_ask *a, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key(&j, "model");
	json_put_raw(&j, a->model.raw);
	json_key(&j, "prompt");
	json_put_raw(&j, a->ids.raw);
	if (a->answer_tokens > 0)
		json_key_u64(&j, "max_tokens", a->answer_tokens);
	json_key_bool(&j, "stream", true);
	json_close(&j, '}');
}

bool selection_allows(const struct selection_ask *a, uint64_t number)
{
	if (a->one && number != a->worker)
		return false;
	if (a->workers.raw.p == NULL)
		return true;
	struct json_iter it = json_iter_of(a->workers);
	uint64_t listed;
	for (struct json_val e; json_next_elem(&it, &e);)
		if (json_u64(e, &listed) && listed == number)
			return true;
	return false;
}

bool selection_lists(struct cgn_str list, struct cgn_str endpoint)
{
	while (list.n > 0)
		if (cgn_str_eq(cgn_str_trim(cgn_str_split(&list, ',')), endpoint))
			return true;
	return false;
}
