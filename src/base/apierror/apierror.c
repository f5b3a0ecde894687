/* SPDX-License-Identifier: Apache-2.0 */
#include "base/apierror/apierror.h"

static void openai_put(struct json_out *o, const struct apierror *e)
{
	json_open(o, '{');
	json_key_open(o, "error", '{');
	json_key_z(o, "message", e->message);
	json_key_z(o, "type", e->type);
	json_key(o, "param");
	if (e->param != NULL)
		json_put_z(o, e->param);
	else
		json_put_null(o);
	json_key(o, "code");
	if (e->code != NULL)
		json_put_z(o, e->code);
	else
		json_put_i64(o, e->status);
	json_close(o, '}');
	json_close(o, '}');
}

/* The types of Anthropic's documentation. 503 is not in it: its "overloaded" (529) also means "try later". */
static const char *anthropic_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 402:
		return "billing_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 413:
		return "request_too_large";
	case 429:
		return "rate_limit_error";
	case 503:
	case 529:
		return "overloaded_error";
	case 504:
		return "timeout_error";
	default:
		return status < 500 ? "invalid_request_error" : "api_error";
	}
}

static void anthropic_put(struct json_out *o, const struct apierror *e)
{
	json_open(o, '{');
	json_key_z(o, "type", "error");
	json_key_open(o, "error", '{');
	json_key_z(o, "type", anthropic_type(e->status));
	json_key_z(o, "message", e->message);
	json_close(o, '}');
	if (e->request_id.n > 0)
		json_key_str(o, "request_id", e->request_id);
	json_close(o, '}');
}

void apierror_put(struct cgn_buf *out, const struct apierror *e)
{
	struct json_out o = json_out_to(out);
	switch (e->shape) {
	case APIERROR_OPENAI:
		openai_put(&o, e);
		break;
	case APIERROR_ANTHROPIC:
		anthropic_put(&o, e);
		break;
	case APIERROR_OLLAMA:
		json_open(&o, '{');
		json_key_z(&o, "error", e->message);
		json_close(&o, '}');
		break;
	}
}

/* ---- events ---- */

#define RESPONSES_CODE "server_error" /* The Responses API has a closed list of codes. */

static void failed_put(struct json_out *o, const struct apierror *e, const struct apierror_response *of)
{
	json_key_open(o, "response", '{');
	json_key_str(o, "id", of->id);
	json_key_z(o, "object", "response");
	json_key_u64(o, "created_at", of->created);
	json_key_z(o, "status", "failed");
	json_key_open(o, "error", '{');
	json_key_z(o, "code", RESPONSES_CODE);
	json_key_z(o, "message", e->message);
	json_close(o, '}');
	json_key(o, "incomplete_details");
	json_put_null(o);
	json_key_str(o, "model", of->model);
	json_key_open(o, "output", '[');
	json_close(o, ']');
	json_key_bool(o, "parallel_tool_calls", true);
	json_key_z(o, "tool_choice", "auto");
	json_key_open(o, "tools", '[');
	json_close(o, ']');
	json_key(o, "usage");
	json_put_null(o);
	json_close(o, '}');
}

static void response_event_put(struct cgn_buf *out, const struct apierror *e,
	const struct apierror_response *of)
{
	const char *type = of->id.n > 0 ? "response.failed" : "error";
	struct json_out o = json_out_to(out);
	cgn_buf_fmt(out, "event: %s\ndata: ", type);
	json_open(&o, '{');
	json_key_z(&o, "type", type);
	json_key_u64(&o, "sequence_number", of->sequence);
	if (of->id.n > 0)
		failed_put(&o, e, of);
	else {
		json_key_z(&o, "code", RESPONSES_CODE);
		json_key_z(&o, "message", e->message);
		json_key(&o, "param");
		json_put_null(&o);
	}
	json_close(&o, '}');
}

void apierror_event_put(struct cgn_buf *out, const struct apierror *e, const struct apierror_response *of)
{
	if (of != NULL)
		response_event_put(out, e, of);
	else {
		cgn_buf_putz(out, "event: error\ndata: ");
		apierror_put(out, e);
	}
	cgn_buf_putz(out, "\n\n");
}

/* Read the number behind a key that ends before |at|. */
static bool number_behind(struct cgn_str tail, size_t at, uint64_t *out)
{
	size_t end;
	while (at < tail.n && (tail.p[at] == ':' || tail.p[at] == ' '))
		at++;
	for (end = at; end < tail.n && tail.p[end] >= '0' && tail.p[end] <= '9';)
		end++;
	return end < tail.n && cgn_str_u64((struct cgn_str){tail.p + at, end - at}, out);
}

bool apierror_sequence_find(struct cgn_str tail, uint64_t *out)
{
	const struct cgn_str key = CGN_STR("\"sequence_number\"");
	for (size_t at = tail.n >= key.n ? tail.n - key.n + 1 : 0; at-- > 0;)
		if (tail.p[at] == '"' && memcmp(tail.p + at, key.p, key.n) == 0 &&
			(at == 0 || tail.p[at - 1] != '\\') && number_behind(tail, at + key.n, out))
			return true;
	return false;
}

const char *apierror_type(int status)
{
	return status < 500 ? "invalid_request_error" : "server_error";
}

/* True for |lead| itself and for paths below it. */
static bool path_is_below(struct cgn_str path, const char *lead)
{
	size_t n = strlen(lead);
	return cgn_str_starts(path, lead) &&
		(path.n == n || path.p[n] == '/' || path.p[n] == '?' || path.p[n] == '#');
}

enum apierror_shape apierror_shape_of(struct cgn_str path)
{
	if (path_is_below(path, "/v1/messages"))
		return APIERROR_ANTHROPIC;
	return path_is_below(path, "/api") ? APIERROR_OLLAMA : APIERROR_OPENAI;
}

/* ---- errors of engines ---- */

static bool says_error(struct json_val v)
{
	return v.raw.p != NULL && v.type == JSON_STRING && cgn_str_is(v.raw, "\"error\"");
}

/* Return true for a value that describes an error; engines also write null, false or "" for none. */
static bool is_told(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL && !cgn_str_is(v.raw, "false") &&
		!cgn_str_is(v.raw, "\"\"");
}

/* The members of an answer or an event that tell an error from an answer. */
enum told { ERROR, OBJECT, TYPE, STATUS, CODE, MESSAGE, DETAIL, CHOICES, DATA, ID, TOLD_N };

/* Return true for an error of FastAPI, or for one without the member "error" around it. An answer has one of its own
 * members too. */
static bool is_bare_error(const struct json_val v[TOLD_N], struct json_val *out)
{
	bool kinded = is_told(v[CODE]) || (v[TYPE].raw.p != NULL && v[TYPE].type == JSON_STRING);
	if (v[CHOICES].raw.p != NULL || v[DATA].raw.p != NULL || v[ID].raw.p != NULL)
		return false;
	if (is_told(v[DETAIL])) {
		*out = v[DETAIL];
		return true;
	}
	*out = v[MESSAGE];
	return v[OBJECT].raw.p == NULL && is_told(v[MESSAGE]) && v[MESSAGE].type == JSON_STRING && kinded;
}

bool apierror_find(struct json_val root, struct json_val *out)
{
	static const char *const keys[TOLD_N] = {"error", "object", "type", "status", "code", "message",
		"detail", "choices", "data", "id"};
	struct json_val v[TOLD_N];
	json_pick(root, keys, TOLD_N, v);
	if (is_told(v[ERROR])) {
		*out = v[ERROR];
		return true;
	}
	if (says_error(v[OBJECT]) || says_error(v[TYPE]) || says_error(v[STATUS])) {
		*out = is_told(v[MESSAGE]) ? v[MESSAGE] : root;
		return true;
	}
	return is_bare_error(v, out);
}

bool apierror_reason(struct cgn_str reason)
{
	static const char *const failed[] = {"abort", "aborted", "error", "cancelled", "canceled", "timeout",
		"insufficient_system_resource"};
	for (size_t i = 0; i < CGN_COUNT(failed); i++)
		if (cgn_str_eq_nocase(cgn_str_trim(reason), cgn_str_of(failed[i])))
			return true;
	return false;
}

void apierror_text(struct json_val error, struct cgn_buf *out)
{
	struct json_val message;
	if (json_get(error, "message", &message) && message.type == JSON_STRING && message.raw.n > 2)
		json_str_to(message, out);
	else if (error.type == JSON_STRING)
		json_str_to(error, out);
	else
		cgn_buf_str(out, error.raw);
}
