/* SPDX-License-Identifier: Apache-2.0 */
/* answer: the log-probabilities of an answer, as engines give them. */
#include <math.h>
#include <string.h>

#include "base/apierror/apierror.h"
#include "policy/answer/cascade/cascade.h"

#define EVENT_MAX  ((size_t)256 * 1024)
#define LEAST_LOG  (-100.0) /* Engines write -inf as null or as a very small number. */
#define TOKEN_TEXT 64

static void on_event(void *arg, struct cgn_str name, struct cgn_str data);

void cascade_answer_init(struct cascade_answer *a, unsigned most)
{
	*a = (struct cascade_answer){.most = most};
	sse_scan_init(&a->scan, EVENT_MAX, on_event, a);
}

void cascade_answer_fini(struct cascade_answer *a)
{
	sse_scan_fini(&a->scan);
}

/* ---- tokens ---- */

struct token {
	double logprob;
	double top[CASCADE_TOP]; /* Descending. */
	unsigned n_top;
};

static double log_clamp(double v)
{
	return v > 0 ? 0 : v > LEAST_LOG ? v : LEAST_LOG;
}

static void top_add(struct token *t, double logprob)
{
	unsigned i = t->n_top;
	if (i == CASCADE_TOP && logprob <= t->top[i - 1])
		return;
	if (i < CASCADE_TOP)
		t->n_top++;
	else
		i--;
	for (; i > 0 && t->top[i - 1] < logprob; i--)
		t->top[i] = t->top[i - 1];
	t->top[i] = logprob;
}

/* The probability that the first alternative has more than the second. */
static double token_margin(const struct token *t)
{
	double first = exp(t->n_top > 0 ? t->top[0] : t->logprob);
	double second = t->n_top > 1 ? exp(t->top[1]) : 1 - first;
	return first > second ? first - second : 0;
}

/* The entropy of the alternatives and the rest, as a share of the most that it can be. */
static double token_entropy(const struct token *t)
{
	double sum = 0, h = 0;
	for (unsigned i = 0; i < t->n_top; i++) {
		sum += exp(t->top[i]);
		h -= exp(t->top[i]) * t->top[i];
	}
	if (sum < 1)
		h -= (1 - sum) * log(1 - sum);
	double share = h / log(t->n_top + 1.0);
	return t->n_top == 0 || share > 1 ? 1 : share;
}

static void token_add(struct cascade_answer *a, const struct token *t)
{
	a->n++;
	a->logprob += t->logprob;
	a->margin += token_margin(t);
	a->entropy += token_entropy(t);
}

static bool has_word(struct cgn_str text)
{
	for (size_t i = 0; i < text.n; i++) {
		unsigned char c = (unsigned char)text.p[i];
		if (c >= 0x80 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
			return true;
	}
	return false;
}

/* Decide whether the token |text| is read: none of reasoning, and none that is only the structure of JSON, code or a
 * sentence, which is certain however wrong the answer is. */
static bool token_counts(struct cascade_answer *a, struct cgn_str text)
{
	struct cgn_str trimmed = cgn_str_trim(text);
	a->seen++;
	if (cgn_str_is(trimmed, "<think>")) {
		a->thinking = true;
		return false;
	}
	if (a->thinking) {
		a->thinking = !cgn_str_is(trimmed, "</think>");
		return false;
	}
	return a->n < a->most && has_word(text);
}

static struct cgn_str token_text(struct json_val v, struct cgn_buf *b)
{
	b->n = 0;
	if (v.raw.p != NULL && v.type == JSON_STRING)
		json_str_to(v, b);
	return cgn_buf_view(b);
}

/* ---- the shapes ---- */

static void content_take(struct cascade_answer *a, struct json_val content)
{
	enum { TOKEN, LOGPROB, TOP, N };
	static const char *const keys[N] = {"token", "logprob", "top_logprobs"};
	struct json_val one, v[N], other, logprob;
	for (struct json_iter it = json_iter_of(content); json_next_elem(&it, &one);) {
		char room[TOKEN_TEXT];
		struct cgn_buf text = cgn_buf_over(room, sizeof room);
		struct token t = {.logprob = LEAST_LOG};
		double f;
		json_pick(one, keys, N, v);
		if (!token_counts(a, token_text(v[TOKEN], &text)))
			continue;
		if (v[LOGPROB].raw.p != NULL && json_f64(v[LOGPROB], &f))
			t.logprob = log_clamp(f);
		if (v[TOP].raw.p != NULL && v[TOP].type == JSON_ARRAY)
			for (struct json_iter k = json_iter_of(v[TOP]); json_next_elem(&k, &other);)
				if (json_get(other, "logprob", &logprob) && json_f64(logprob, &f))
					top_add(&t, log_clamp(f));
		token_add(a, &t);
	}
}

/* Text completions have parallel lists. */
static void lists_take(struct cascade_answer *a, struct json_val tokens, struct json_val logprobs,
	struct json_val tops)
{
	struct json_iter text_it = json_iter_of(tokens), log_it = json_iter_of(logprobs),
			 top_it = json_iter_of(tops);
	struct json_val token, logprob, top, v;
	struct cgn_str key;
	while (json_next_elem(&text_it, &token) && json_next_elem(&log_it, &logprob)) {
		char room[TOKEN_TEXT];
		struct cgn_buf text = cgn_buf_over(room, sizeof room);
		struct token t = {.logprob = LEAST_LOG};
		double f;
		bool has_top = json_next_elem(&top_it, &top) && top.type == JSON_OBJECT;
		if (!token_counts(a, token_text(token, &text)))
			continue;
		if (json_f64(logprob, &f))
			t.logprob = log_clamp(f);
		if (has_top)
			for (struct json_iter k = json_iter_of(top); json_next_member(&k, &key, &v);)
				if (json_f64(v, &f))
					top_add(&t, log_clamp(f));
		token_add(a, &t);
	}
}

static void logprobs_take(struct cascade_answer *a, struct json_val logprobs)
{
	enum { CONTENT, TOKENS, LOGPROBS, TOPS, N };
	static const char *const keys[N] = {"content", "tokens", "token_logprobs", "top_logprobs"};
	struct json_val v[N];
	json_pick(logprobs, keys, N, v);
	if (v[CONTENT].raw.p != NULL && v[CONTENT].type == JSON_ARRAY)
		content_take(a, v[CONTENT]);
	else if (v[TOKENS].raw.p != NULL && v[TOKENS].type == JSON_ARRAY && v[LOGPROBS].raw.p != NULL &&
		v[LOGPROBS].type == JSON_ARRAY && v[TOPS].raw.p != NULL && v[TOPS].type == JSON_ARRAY)
		lists_take(a, v[TOKENS], v[LOGPROBS], v[TOPS]);
}

/* Return true if |part|, a delta or a message, has reasoning that the engine separates from the answer. */
static bool has_reasoning(struct json_val part)
{
	static const char *const keys[] = {"reasoning_content", "reasoning"};
	struct json_val v[CGN_COUNT(keys)];
	json_pick(part, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (v[i].raw.p != NULL && v[i].type == JSON_STRING && v[i].raw.n > 2)
			return true;
	return false;
}

static void reason_take(struct cascade_answer *a, struct json_val finish)
{
	char room[TOKEN_TEXT];
	struct cgn_buf text = cgn_buf_over(room, sizeof room);
	a->ended = true;
	a->broken = a->broken || apierror_reason(token_text(finish, &text));
}

static void choice_take(struct cascade_answer *a, struct json_val choice)
{
	enum { DELTA, MESSAGE, LOGPROBS, FINISH, N };
	static const char *const keys[N] = {"delta", "message", "logprobs", "finish_reason"};
	struct json_val v[N];
	json_pick(choice, keys, N, v);
	if (v[FINISH].raw.p != NULL && v[FINISH].type == JSON_STRING)
		reason_take(a, v[FINISH]);
	if (v[DELTA].raw.p != NULL && has_reasoning(v[DELTA]))
		return;
	/* A whole answer has the tokens of its reasoning first, and often not the mark that begins it. */
	if (v[MESSAGE].raw.p != NULL && has_reasoning(v[MESSAGE]))
		a->thinking = true;
	if (v[LOGPROBS].raw.p != NULL)
		logprobs_take(a, v[LOGPROBS]);
}

void cascade_answer_document(struct cascade_answer *a, struct cgn_str text)
{
	struct json_val root, choices, choice, error;
	if (!cgn_ok(json_parse(text, &root, NULL, NULL)))
		return;
	a->broken = a->broken || apierror_find(root, &error);
	if (!json_get(root, "choices", &choices) || choices.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(choices); json_next_elem(&it, &choice);)
		choice_take(a, choice);
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	struct cascade_answer *a = arg;
	(void)name;
	if (cgn_str_is(data, "[DONE]"))
		a->ended = true;
	else
		cascade_answer_document(a, data);
}

void cascade_answer_feed(struct cascade_answer *a, struct cgn_str data)
{
	sse_scan_feed(&a->scan, data);
}

void cascade_answer_end(struct cascade_answer *a)
{
	sse_scan_end(&a->scan);
}

double cascade_confidence(const struct cascade_answer *a)
{
	return a->n > 0 ? a->logprob / a->n : 0;
}

double cascade_doubt(const struct cascade_answer *a)
{
	return a->n > 0 ? (1 - a->margin / a->n + a->entropy / a->n) / 2 : 1;
}
