/* SPDX-License-Identifier: Apache-2.0 */
/* answer: the decision in a hook's answer. */
#include "base/json/json.h"
#include "policy/answer/hook/hook.h"

#define USUAL_CODE    "hook_refused"
#define USUAL_MESSAGE "the request is not allowed here"

static void text_take(void *arg, struct cgn_str piece)
{
	struct cgn_buf *to = arg;
	size_t room = to->limit - to->n;
	cgn_buf_add(to, piece.p, piece.n < room ? piece.n : room);
}

/* Copy the beginning of a JSON string as one line of UTF-8; false when nothing is left. */
static bool line_copy(struct json_val v, char *out, size_t cap)
{
	struct cgn_buf b = cgn_buf_over(out, cap - 1);
	if (v.raw.p == NULL || v.type != JSON_STRING)
		return false;
	json_str_pieces(v, text_take, &b);
	size_t n = cgn_utf8_prefix(out, b.n);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)out[i] < ' ' || out[i] == 0x7f)
			out[i] = ' ';
	out[n] = '\0';
	return cgn_str_trim((struct cgn_str){out, n}).n > 0;
}

static bool is_code(const char *s)
{
	static const char *const marks = "_-.";
	for (; *s != '\0'; s++) {
		bool alnum = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9');
		if (!alnum && strchr(marks, *s) == NULL)
			return false;
	}
	return true;
}

/* A client takes 401 for a wrong key and 404 for a wrong path, which the hook does not know of: such statuses are about
 * the question, not about the request. */
static int status_shown(int status)
{
	return status == 400 || status == 402 || status == 403 || status == 429 || status == 451 ? status
												 : 403;
}

static void refusal_read(int status, struct json_val message, struct json_val code, struct hook_verdict *out)
{
	out->decision = HOOK_REFUSED;
	out->status = status_shown(status);
	if (!line_copy(message, out->message, sizeof out->message))
		(void)cgn_str_copyz(out->message, sizeof out->message, CGN_STR(USUAL_MESSAGE));
	if (!line_copy(code, out->code, sizeof out->code) || !is_code(out->code))
		(void)cgn_str_copyz(out->code, sizeof out->code, CGN_STR(USUAL_CODE));
}

void hook_answer_read(int status, struct cgn_str body, struct hook_verdict *out)
{
	static const char *const keys[] = {"allow", "message", "code"};
	struct json_val all = {.type = JSON_NULL}, v[3] = {{.type = JSON_NULL}};
	*out = (struct hook_verdict){.decision = HOOK_FAILED};
	bool parsed = body.n > 0 && body.n <= HOOK_ANSWER_MAX && cgn_ok(json_parse(body, &all, NULL, NULL)) &&
		all.type == JSON_OBJECT;
	bool once = !parsed || json_pick(all, keys, 3, v);
	if (status >= 400 && status < 500)
		refusal_read(status, v[1], v[2], out);
	else if (status != 200 && status != 204)
		out->why = status >= 300 && status < 400
			? "it redirects, and redirects are not followed"
			: "its status is not a decision (200, 204 and 4xx are)";
	else if (body.n == 0)
		out->decision = HOOK_ALLOWED;
	else if (!parsed)
		out->why = "its answer is not a JSON object";
	else if (!once)
		out->why = "its answer has \"allow\", \"message\" or \"code\" twice";
	else if (v[0].raw.p == NULL || v[0].type != JSON_BOOL)
		out->why = "its answer has no \"allow\" that is true or false";
	else if (json_bool(v[0], false))
		out->decision = HOOK_ALLOWED;
	else
		refusal_read(403, v[1], v[2], out);
}
