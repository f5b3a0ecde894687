/* SPDX-License-Identifier: Apache-2.0 */
/* wire: the framing of ZMTP 3: a greeting of 64 bytes, then frames of flags, a length of 1 or 8 bytes, and a
 * body. */
#include <limits.h>
#include <string.h>

#include "zmtp_priv.h"

#define FLAG_MORE    0x01U
#define FLAG_LONG    0x02U
#define FLAG_COMMAND 0x04U

static const char mechanism[20] = "NULL";

void zmtp_wire_init(struct zmtp_wire *w, size_t max_message)
{
	*w = (struct zmtp_wire){.max_message = max_message, .body.limit = max_message + ZMTP_MAX_COMMAND};
}

void zmtp_wire_fini(struct zmtp_wire *w)
{
	cgn_buf_fini(&w->body);
}

static enum zmtp_got wire_fault(struct zmtp_wire *w, const char *what)
{
	w->fault = what;
	return ZMTP_GOT_FAULT;
}

/* Collect |need| bytes of the head; returns false while some are missing. */
static bool fill_head(struct zmtp_wire *w, struct cgn_str *rest, size_t need)
{
	size_t n = need > w->head_n ? need - w->head_n : 0;
	n = n < rest->n ? n : rest->n;
	if (n > 0)
		memcpy(w->head + w->head_n, rest->p, n);
	w->head_n += n;
	*rest = (struct cgn_str){rest->p + n, rest->n - n};
	return w->head_n >= need;
}

/* The greeting: signature FF, 8 bytes of padding, 7F; version; 20 bytes of mechanism; as-server; 31 bytes of
 * filler. A fault is detected at its first byte. */
static enum zmtp_got take_greeting(struct zmtp_wire *w, struct cgn_str *rest)
{
	bool whole = fill_head(w, rest, ZMTP_GREETING_BYTES);
	if (w->head_n > 0 && w->head[0] != 0xff)
		return wire_fault(w, "it does not speak ZMTP 3");
	if (w->head_n > 9 && (w->head[9] & 1) == 0)
		return wire_fault(w, "it does not speak ZMTP 3");
	if (w->head_n > 10 && w->head[10] < 3)
		return wire_fault(w, "it speaks a ZMTP older than 3.0 (libzmq before 4.0)");
	if (!whole)
		return ZMTP_GOT_NOTHING;
	if (memcmp(w->head + 12, mechanism, sizeof mechanism) != 0)
		return wire_fault(w, "it wants a security mechanism other than NULL");
	w->major = w->head[10];
	w->minor = w->head[11];
	w->greeted = true;
	w->head_n = 0;
	return ZMTP_GOT_GREETING;
}

static uint64_t length_of(const struct zmtp_wire *w)
{
	uint64_t n = 0;
	if ((w->flags & FLAG_LONG) == 0)
		return w->head[1];
	for (size_t i = 1; i < 9; i++)
		n = n << 8 | w->head[i];
	return n;
}

static bool is_command(const struct zmtp_wire *w)
{
	return (w->flags & FLAG_COMMAND) != 0;
}

static size_t parts_end(const struct zmtp_wire *w)
{
	return w->n_ends > 0 ? w->ends[w->n_ends - 1] : 0;
}

/* The head of a frame is complete: check whether its body may come. */
static bool begin_body(struct zmtp_wire *w)
{
	uint64_t n = length_of(w);
	size_t max = is_command(w) ? ZMTP_MAX_COMMAND : w->max_message - parts_end(w);
	if ((w->flags & ~(FLAG_MORE | FLAG_LONG | FLAG_COMMAND)) != 0 ||
		(w->flags & (FLAG_COMMAND | FLAG_MORE)) == (FLAG_COMMAND | FLAG_MORE))
		w->fault = "a frame with flags that do not exist";
	else if (n > max)
		w->fault = is_command(w) ? "a command that is too long" : "a message that is too long";
	else if (!is_command(w) && w->n_ends == ZMTP_MAX_PARTS)
		w->fault = "a message of too many parts";
	w->left = (size_t)n;
	w->head_n = 0;
	w->in_body = true;
	return w->fault == NULL;
}

static enum zmtp_got end_of_message(struct zmtp_wire *w)
{
	size_t begin = 0;
	for (size_t i = 0; i < w->n_ends; i++) {
		/* A part without bytes has no body pointer. */
		w->parts[i] = w->ends[i] > begin ? (struct cgn_str){w->body.p + begin, w->ends[i] - begin}
						 : CGN_STR("");
		begin = w->ends[i];
	}
	w->n_parts = w->n_ends;
	w->n_ends = 0;
	w->handed_out = true;
	return ZMTP_GOT_MESSAGE;
}

static enum zmtp_got end_of_body(struct zmtp_wire *w)
{
	w->in_body = false;
	if (!is_command(w)) {
		w->ends[w->n_ends++] = w->body.n;
		return (w->flags & FLAG_MORE) != 0 ? ZMTP_GOT_NOTHING : end_of_message(w);
	}
	size_t begin = parts_end(w), n = w->body.n - begin;
	if (n == 0 || (uint8_t)w->body.p[begin] >= n)
		return wire_fault(w, "a command without a name");
	w->command = (struct cgn_str){w->body.p + begin, n};
	w->body.n = begin; /* The bytes stay valid until the next call. */
	return ZMTP_GOT_COMMAND;
}

static enum zmtp_got take_frame(struct zmtp_wire *w, struct cgn_str *rest)
{
	if (!w->in_body) {
		if (!fill_head(w, rest, 1))
			return ZMTP_GOT_NOTHING;
		w->flags = w->head[0];
		if (!fill_head(w, rest, (w->flags & FLAG_LONG) != 0 ? 9 : 2))
			return ZMTP_GOT_NOTHING;
		if (!begin_body(w))
			return ZMTP_GOT_FAULT;
	}
	size_t n = w->left < rest->n ? w->left : rest->n;
	/* Grow with the bytes that came, not with the length that was claimed. */
	cgn_buf_add(&w->body, rest->p, n);
	if (w->body.bad)
		return wire_fault(w, "no memory for a message");
	w->left -= n;
	*rest = (struct cgn_str){rest->p + n, rest->n - n};
	return w->left > 0 ? ZMTP_GOT_NOTHING : end_of_body(w);
}

enum zmtp_got zmtp_wire_next(struct zmtp_wire *w, struct cgn_str *rest)
{
	enum zmtp_got got = ZMTP_GOT_NOTHING;
	if (w->fault != NULL)
		return ZMTP_GOT_FAULT;
	if (w->handed_out) {
		w->handed_out = false;
		w->body.n = 0;
	}
	while (got == ZMTP_GOT_NOTHING && rest->n > 0)
		got = w->greeted ? take_frame(w, rest) : take_greeting(w, rest);
	return got;
}

/* ---- writing ---- */

void zmtp_put_greeting(struct cgn_buf *b)
{
	static const uint8_t signature[12] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1};
	static const char filler[32] = {0};
	cgn_buf_add(b, signature, sizeof signature);
	cgn_buf_add(b, mechanism, sizeof mechanism);
	cgn_buf_add(b, filler, sizeof filler);
}

static void put_frame_head(struct cgn_buf *b, unsigned flags, size_t n)
{
	cgn_buf_char(b, (char)(n > UINT8_MAX ? flags | FLAG_LONG : flags));
	for (int shift = n > UINT8_MAX ? 56 : 0; shift >= 0; shift -= 8)
		cgn_buf_char(b, (char)(uint8_t)((uint64_t)n >> shift));
}

size_t zmtp_message_bytes(const struct cgn_str *parts, size_t n)
{
	size_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum += 9 + parts[i].n;
	return sum;
}

void zmtp_put_message(struct cgn_buf *b, const struct cgn_str *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		put_frame_head(b, i + 1 < n ? FLAG_MORE : 0, parts[i].n);
		cgn_buf_str(b, parts[i]);
	}
}

void zmtp_put_command(struct cgn_buf *b, const char *name, struct cgn_str data)
{
	size_t n = strlen(name);
	put_frame_head(b, FLAG_COMMAND, 1 + n + data.n);
	cgn_buf_char(b, (char)(uint8_t)n);
	cgn_buf_putz(b, name);
	cgn_buf_str(b, data);
}

void zmtp_put_property(struct cgn_buf *b, const char *name, struct cgn_str value)
{
	cgn_buf_char(b, (char)(uint8_t)strlen(name));
	cgn_buf_putz(b, name);
	for (int shift = 24; shift >= 0; shift -= 8)
		cgn_buf_char(b, (char)(uint8_t)(value.n >> shift));
	cgn_buf_str(b, value);
}

/* ---- commands ---- */

bool zmtp_command_is(struct cgn_str command, const char *name, struct cgn_str *data)
{
	size_t n = (uint8_t)command.p[0];
	if (!cgn_str_is((struct cgn_str){command.p + 1, n}, name))
		return false;
	*data = (struct cgn_str){command.p + 1 + n, command.n - 1 - n};
	return true;
}

struct cgn_str zmtp_property(struct cgn_str rest, const char *name)
{
	while (rest.n > 0) {
		size_t n = (uint8_t)rest.p[0], size = 0;
		if (rest.n < 1 + n + 4)
			break;
		struct cgn_str key = {rest.p + 1, n};
		for (size_t i = 0; i < 4; i++)
			size = size << 8 | (uint8_t)rest.p[1 + n + i];
		if (rest.n - (1 + n + 4) < size)
			break;
		struct cgn_str value = {rest.p + 1 + n + 4, size};
		if (cgn_str_eq_nocase(key, cgn_str_of(name)))
			return value;
		rest = (struct cgn_str){value.p + size, rest.n - (1 + n + 4) - size};
	}
	return (struct cgn_str){0};
}
