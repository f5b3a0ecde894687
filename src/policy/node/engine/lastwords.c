/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/node/engine/lastwords.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/core/err.h"

/* ---- levels ---- */

static struct cgn_str text_from(struct cgn_str s, size_t at)
{
	return (struct cgn_str){s.p + at, s.n - at};
}

static void color_skip(struct cgn_str *s)
{
	while (s->n > 2 && s->p[0] == '\033' && s->p[1] == '[') {
		size_t i = 2;
		while (i < s->n && s->p[i] != 'm')
			i++;
		if (i == s->n)
			return;
		*s = text_from(*s, i + 1);
	}
}

/* Skip the "(EngineCore pid=123) " of vLLM's processes. */
static void process_skip(struct cgn_str *s)
{
	const char *end = s->n > 0 && s->p[0] == '(' ? memchr(s->p, ')', s->n) : NULL;
	if (end != NULL && (size_t)(end - s->p) + 2 < s->n && end[1] == ' ')
		*s = text_from(*s, (size_t)(end - s->p) + 2);
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* "ERROR 11-22 10:00:00 [file.py:1] text" of vLLM, "ERROR:    text" of uvicorn and Python's logging */
static bool has_word(struct cgn_str s, const char *word)
{
	size_t n = strlen(word);
	if (!cgn_str_starts(s, word) || s.n <= n)
		return false;
	return s.p[n] == ':' || (s.p[n] == ' ' && s.n > n + 1 && is_digit(s.p[n + 1]));
}

/* Return the letter of "0.00.007.501 E text" (llama.cpp), "E1122 10:00:00 text" (glog) and "[TRT-LLM] [E] text"; 0: none. */
static char level_letter(struct cgn_str s)
{
	size_t i = 0;
	while (i < s.n && (is_digit(s.p[i]) || s.p[i] == '.'))
		i++;
	if (i > 0 && i + 2 < s.n && s.p[i] == ' ' && s.p[i + 2] == ' ')
		return s.p[i + 1];
	if (i == 0 && s.n > 6 && is_digit(s.p[1]) && is_digit(s.p[2]) && is_digit(s.p[3]) &&
		is_digit(s.p[4]) && s.p[5] == ' ')
		return s.p[0];
	const char *trt = s.n > 0 ? memmem(s.p, s.n, "[TRT-LLM] [", 11) : NULL;
	return trt != NULL && trt + 12 < s.p + s.n && trt[12] == ']' ? trt[11] : '\0';
}

enum engine_line_level engine_line_level(struct cgn_str line)
{
	color_skip(&line);
	process_skip(&line);
	color_skip(&line);
	char letter = level_letter(line);
	if (has_word(line, "ERROR") || has_word(line, "CRITICAL") || letter == 'E' || letter == 'F' ||
		cgn_str_starts(line, "error: ") || cgn_str_starts(line, "Traceback (most recent call last)"))
		return ENGINE_LINE_ERROR;
	if (has_word(line, "WARNING") || letter == 'W')
		return ENGINE_LINE_WARNING;
	return ENGINE_LINE_PLAIN;
}

/* ---- causes ---- */

struct cause {
	const char *text, *what, *advice, *read_at;
};
static const struct cause causes[] = {
#define CAUSE(text, what, advice, read_at) {text, what, advice, read_at},
#include "policy/node/engine/lastwords.def"
#undef CAUSE
};
#define CAUSES_NONE CGN_COUNT(causes)

void engine_words_begin(struct engine_words *w)
{
	*w = (struct engine_words){.cause = CAUSES_NONE};
}

void engine_text_keep(char *to, size_t cap, struct cgn_str text)
{
	size_t n = 0;
	text = cgn_str_trim(text);
	while (text.n > 0 && n < cap - 1) {
		size_t room = cap - 1 - n;
		size_t whole = cgn_utf8_prefix(text.p, text.n < room ? text.n : room);
		memcpy(to + n, text.p, whole);
		n += whole;
		text = text_from(text, whole);
		if (text.n == 0 || n == cap - 1)
			break;
		to[n++] =
			'?'; /* For a byte that belongs to no character, or a character that is cut at the end. */
		text = text_from(text, 1);
	}
	to[n] = '\0';
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)to[i] < ' ' || to[i] == 0x7f)
			to[i] = ' ';
}

void engine_words_line(struct engine_words *w, struct cgn_str line)
{
	w->lines++;
	if (w->cause < CAUSES_NONE && w->lines - w->at > ENGINE_WORDS_LINES)
		w->cause = CAUSES_NONE;
	engine_text_keep(w->last, sizeof w->last, line);
	for (size_t i = 0; i < CAUSES_NONE && i <= w->cause; i++) {
		if (memmem(line.p, line.n, causes[i].text, strlen(causes[i].text)) == NULL)
			continue;
		w->cause = i;
		w->at = w->lines;
		engine_text_keep(w->said, sizeof w->said, line);
		return;
	}
}

/* Return the meaning that a signal or an exit status has by itself; NULL: none. */
static const struct cause *cause_of_end(const struct engine_end *end)
{
	static const struct cause oom =
		{.what = "the kernel killed it because the machine, or its cgroup, had no memory left",
			.advice = "use a smaller model or context, or give it more memory"};
	static const struct cause killed = {.what = "another process sent SIGKILL",
		.advice = "see who did: an operator, a container's limit, or the kernel's log (dmesg)"};
	static const struct cause crashed = {.what = "the program crashed",
		.advice = "this is a fault of the engine, a library or the hardware; see its log"};
	static const struct cause illegal =
		{.what = "the program uses instructions that this processor lacks",
			.advice = "install a build for this processor"};
	static const struct cause absent = {.what = "a program that it starts is missing",
		.advice = "see its log, and correct engine.binary"};
	if (end->oom_kill && (end->signal == SIGKILL || end->code > 0))
		return &oom;
	switch (end->signal) {
	case SIGKILL:
		return &killed;
	case SIGILL:
		return &illegal;
	case SIGSEGV:
	case SIGBUS:
	case SIGABRT:
	case SIGFPE:
		return &crashed;
	default:
		return end->code == 127 ? &absent : NULL;
	}
}

void engine_words_tell(const struct engine_words *w, const struct engine_end *end, char *out, size_t cap)
{
	bool known =
		w->cause < CAUSES_NONE && w->lines - w->at <= ENGINE_WORDS_LINES && end->signal != SIGKILL;
	const struct cause *c = known ? &causes[w->cause] : cause_of_end(end);
	const char *said = known ? w->said : w->last;
	int n = c != NULL ? snprintf(out, cap, "%s: %s; %s", end->how, c->what, c->advice)
			  : snprintf(out, cap, "%s", end->how);
	if (n > 0 && (size_t)n < cap && said[0] != '\0')
		(void)snprintf(out + n, cap - (size_t)n, " (its last words: %s)", said);
}
