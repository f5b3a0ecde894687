/* SPDX-License-Identifier: Apache-2.0 */
#include "ask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/socket.h>

#include "base/json/json.h"

#define ANSWER_MOST ((size_t)4 << 20)

/* ---- the connection ---- */

struct talk {
	const struct ask *a;
	int fd;
	uint64_t until;
	struct cgn_buf got; /* All bytes of the answer */
	bool ended, broken, late, left;
};

static int milliseconds_left(const struct talk *t)
{
	uint64_t now = world_now();
	return now >= t->until ? 0 : (int)((t->until - now) / WORLD_MS + 1);
}

/* Wait for |events|; false: too late. */
static bool talk_wait(struct talk *t, short events)
{
	struct pollfd p = {.fd = t->fd, .events = events};
	int left = milliseconds_left(t);
	t->late = left == 0 || poll(&p, 1, left) <= 0;
	return !t->late;
}

static bool talk_open(struct talk *t)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(t->a->port)};
	int error = 0;
	socklen_t n = sizeof error;
	inet_pton(AF_INET, t->a->host, &a.sin_addr);
	t->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (t->fd < 0)
		return false;
	if (connect(t->fd, (struct sockaddr *)&a, sizeof a) == 0)
		return true;
	if (errno != EINPROGRESS || !talk_wait(t, POLLOUT))
		return false;
	return getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0;
}

static void talk_send(struct talk *t, const char *p, size_t n)
{
	while (n > 0 && !t->broken) {
		ssize_t sent = send(t->fd, p, n, MSG_NOSIGNAL);
		if (sent > 0) {
			p += sent;
			n -= (size_t)sent;
		} else if (errno != EAGAIN || !talk_wait(t, POLLOUT)) {
			t->broken = true;
		}
	}
}

static void talk_read(struct talk *t)
{
	char bytes[4096];
	while (!t->ended && !t->broken) {
		ssize_t n = recv(t->fd, bytes, sizeof bytes, 0);
		if (n > 0)
			cgn_buf_add(&t->got, bytes, (size_t)n);
		t->ended = n == 0;
		t->left = t->a->leaves_at > 0 && t->got.n >= t->a->leaves_at;
		if (t->left || t->got.n > ANSWER_MOST ||
			(n < 0 && (errno != EAGAIN || !talk_wait(t, POLLIN))))
			t->broken = true;
	}
}

/* ---- the answer ---- */

static void field_copy(struct cgn_str line, const char *name, char *out, size_t room)
{
	size_t n = strlen(name);
	if (line.n <= n || strncasecmp(line.p, name, n) != 0 || line.p[n] != ':')
		return;
	for (n++; n < line.n && line.p[n] == ' ';)
		n++;
	(void)cgn_str_copyz(out, room, (struct cgn_str){line.p + n, line.n - n});
}

struct told_head {
	bool chunked, sized;
	size_t size;
};

static void line_read(struct cgn_str line, struct told *out, struct told_head *h)
{
	char text[64] = "";
	field_copy(line, "x-cgn-peer", out->peer, sizeof out->peer);
	field_copy(line, "x-cgn-node", out->node, sizeof out->node);
	field_copy(line, "content-type", out->kind, sizeof out->kind);
	field_copy(line, "transfer-encoding", text, sizeof text);
	h->chunked |= strcasecmp(text, "chunked") == 0;
	text[0] = '\0';
	field_copy(line, "content-length", text, sizeof text);
	h->sized |= text[0] != '\0';
	h->size = text[0] != '\0' ? strtoull(text, NULL, 10) : h->size;
}

/* Return the body's bytes; p is NULL: the head is not whole. */
static struct cgn_str head_read(struct cgn_str all, struct told *out, struct told_head *h)
{
	for (bool first = true; all.n > 0; first = false) {
		const char *end = memmem(all.p, all.n, "\r\n", 2);
		if (end == NULL)
			break;
		struct cgn_str line = {all.p, (size_t)(end - all.p)};
		all = (struct cgn_str){end + 2, all.n - line.n - 2};
		if (line.n == 0)
			return all;
		if (first)
			out->status = line.n >= 12 ? atoi(line.p + 9) : -1;
		else
			line_read(line, out, h);
	}
	out->status = 0;
	return (struct cgn_str){0};
}

/* Take chunks apart. Return true if the last one is there. */
static bool chunks_read(struct cgn_str in, struct cgn_buf *out)
{
	while (in.n > 0) {
		const char *end = memmem(in.p, in.n, "\r\n", 2);
		if (end == NULL)
			return false;
		size_t n = strtoull(in.p, NULL, 16), head = (size_t)(end - in.p) + 2;
		if (n == 0)
			return true;
		if (in.n - head < n + 2) {
			cgn_buf_add(out, end + 2, in.n - head < n ? in.n - head : n);
			return false;
		}
		cgn_buf_add(out, end + 2, n);
		in = (struct cgn_str){end + 2 + n + 2, in.n - head - n - 2};
	}
	return false;
}

static void answer_read(const struct talk *t, struct told *out)
{
	struct told_head h = {0};
	struct cgn_str body = head_read(cgn_buf_view(&t->got), out, &h);
	if (body.p == NULL)
		return;
	if (h.chunked) {
		out->whole = chunks_read(body, &out->body);
		return;
	}
	cgn_buf_add(&out->body, body.p, body.n);
	out->whole = h.sized ? body.n >= h.size : t->ended;
}

static void head_write(const struct ask *a, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s %s HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n", a->method, a->path);
	if (a->body.n > 0)
		cgn_buf_fmt(out, "Content-Type: %s\r\nContent-Length: %zu\r\n",
			a->kind != NULL ? a->kind : "application/json", a->body.n);
	cgn_buf_fmt(out, "%s\r\n", a->fields != NULL ? a->fields : "");
	cgn_buf_str(out, a->body);
}

void ask_once(const struct ask *a, struct told *out)
{
	struct talk t = {.a = a, .until = world_now() + a->patience};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	*out = (struct told){0};
	head_write(a, &text);
	out->connected = talk_open(&t);
	if (out->connected) {
		talk_send(&t, text.p, text.n);
		t.broken = false; /* A server may answer and close before it has read all */
		talk_read(&t);
	}
	if (t.fd >= 0)
		(void)close(t.fd);
	answer_read(&t, out);
	out->late = t.late;
	out->left = t.left;
	cgn_buf_fini(&t.got);
}

void told_fini(struct told *t)
{
	cgn_buf_fini(&t->body);
}

/* ---- from another machine ---- */

static struct ask_order {
	const struct ask *a;
	struct told *out;
} *order;

static int order_main(int argc, char **argv)
{
	struct ask_order *mine = order;
	(void)argc, (void)argv;
	order = NULL;
	ask_once(mine->a, mine->out);
	return 0;
}

void ask_from(struct world_host *h, const struct ask *a, struct told *out)
{
	static const char *const argv[] = {"ask", NULL};
	struct ask_order mine = {a, out};
	while (order != NULL)
		world_sleep(WORLD_MS);
	order = &mine;
	struct world_proc *p = world_start(h, "ask", order_main, argv);
	while (world_alive(p))
		world_sleep(WORLD_MS);
}

/* ---- texts ---- */

static void error_read(struct json_val v, struct told_text *out)
{
	struct json_val e, code;
	if (!json_get(v, "error", &e) || e.type == JSON_NULL)
		return;
	out->error = true;
	if (json_get(e, "code", &code) && code.type == JSON_STRING)
		(void)cgn_str_copyz(out->code, sizeof out->code,
			(struct cgn_str){code.raw.p + 1, code.raw.n - 2});
}

static void choice_read(struct json_val choice, struct told_text *out)
{
	struct json_val part, text;
	if (json_get(choice, "text", &text) && text.type == JSON_STRING)
		json_str_to(text, &out->text);
	if ((json_get(choice, "delta", &part) || json_get(choice, "message", &part)) &&
		json_get(part, "content", &text) && text.type == JSON_STRING)
		json_str_to(text, &out->text);
}

void told_text_add(struct cgn_str s, struct told_text *out)
{
	struct json_val v, choices, choice;
	struct cgn_err err;
	if (!cgn_ok(json_parse(s, &v, NULL, &err)) || v.type != JSON_OBJECT) {
		out->strange = true;
		return;
	}
	error_read(v, out);
	if (!json_get(v, "choices", &choices) || choices.type != JSON_ARRAY)
		return;
	struct json_iter it = json_iter_of(choices);
	while (json_next_elem(&it, &choice))
		choice_read(choice, out);
}

static void event_read(struct cgn_str line, struct told_text *out)
{
	if (line.n < 6 || memcmp(line.p, "data: ", 6) != 0)
		return;
	struct cgn_str data = {line.p + 6, line.n - 6};
	if (out->done)
		out->strange = true;
	if (cgn_str_is(data, "[DONE]"))
		out->done = true;
	else
		told_text_add(data, out);
}

void told_text(const struct told *t, struct told_text *out)
{
	*out = (struct told_text){0};
	struct cgn_str all = cgn_buf_view(&t->body);
	if (strncmp(t->kind, "text/event-stream", 17) != 0) {
		if (all.n > 0)
			told_text_add(all, out);
		out->done = t->whole && all.n > 0;
		return;
	}
	while (all.n > 0) {
		const char *end = memchr(all.p, '\n', all.n);
		if (end == NULL)
			break;
		size_t n = (size_t)(end - all.p);
		event_read((struct cgn_str){all.p, n > 0 && all.p[n - 1] == '\r' ? n - 1 : n}, out);
		all = (struct cgn_str){end + 1, all.n - n - 1};
	}
}
