/* SPDX-License-Identifier: Apache-2.0 */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/socket.h>

#include "../world/world.h"

struct call {
	const struct http_want *want;
	struct http_got *got;
	int fd;
	uint64_t began, bytes;
	struct cgn_buf in; /* Bytes that are not read yet */
	bool over;         /* got->end is set */
};

static bool call_end(struct call *c, enum http_end end)
{
	if (!c->over)
		c->got->end = end;
	c->over = true;
	return false;
}

static bool call_leaves(const struct call *c)
{
	return (c->want->leave_after > 0 && c->bytes >= c->want->leave_after) ||
		(c->want->leave_at > 0 && world_now() - c->began >= c->want->leave_at);
}

/* Read more bytes into |in|. False: there are no more. */
static bool call_fill(struct call *c)
{
	char bytes[16384];
	uint64_t wait = c->want->timeout, left;
	if (call_leaves(c))
		return call_end(c, HTTP_LEFT);
	if (c->want->pause > 0)
		world_sleep(c->want->pause);
	if (c->want->leave_at > 0) {
		left = c->began + c->want->leave_at > world_now() ? c->began + c->want->leave_at - world_now()
								  : 0;
		wait = left < wait ? left : wait;
	}
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	if (poll(&p, 1, (int)(wait / WORLD_MS + 1)) == 0)
		return call_end(c, call_leaves(c) ? HTTP_LEFT : HTTP_SILENT);
	size_t most = c->want->leave_after > 0 ? (size_t)(c->want->leave_after - c->bytes) : sizeof bytes;
	ssize_t n = recv(c->fd, bytes, most < sizeof bytes ? most : sizeof bytes, 0);
	if (n <= 0)
		return call_end(c, c->bytes > 0 ? HTTP_CUT : HTTP_NOTHING);
	if (c->bytes == 0)
		c->got->first_byte = world_now() - c->began;
	c->bytes += (uint64_t)n;
	cgn_buf_add(&c->in, bytes, (size_t)n);
	return true;
}

/* Move a line without its end into |out|. */
static bool call_line(struct call *c, char *out, size_t cap)
{
	char *end;
	while ((end = c->in.n > 0 ? memmem(c->in.p, c->in.n, "\r\n", 2) : NULL) == NULL)
		if (!call_fill(c))
			return false;
	size_t n = (size_t)(end - c->in.p);
	(void)snprintf(out, cap, "%.*s", (int)n, c->in.p);
	cgn_buf_eat(&c->in, n + 2);
	return true;
}

static bool call_bytes(struct call *c, size_t n)
{
	while (n > 0) {
		size_t take = c->in.n < n ? c->in.n : n;
		cgn_buf_add(&c->got->body, c->in.p, take);
		if (take > 0)
			cgn_buf_eat(&c->in, take);
		n -= take;
		if (n > 0 && !call_fill(c))
			return false;
	}
	return true;
}

static void read_chunks(struct call *c)
{
	char line[256];
	while (call_line(c, line, sizeof line)) {
		char *end;
		size_t n = strtoull(line, &end, 16);
		if (end == line) {
			(void)call_end(c, HTTP_BROKEN);
			return;
		}
		if (!call_bytes(c, n) || !call_line(c, line, sizeof line))
			return;
		if (n == 0) {
			(void)call_end(c, HTTP_WHOLE);
			return;
		}
	}
}

static void read_body(struct call *c)
{
	struct cgn_str length = http_header(c->got, "content-length");
	if (http_header(c->got, "transfer-encoding").n > 0) {
		read_chunks(c);
	} else if (length.n > 0) {
		if (call_bytes(c, strtoull(length.p, NULL, 10)))
			(void)call_end(c, HTTP_WHOLE);
	} else {
		while (call_fill(c))
			;
		cgn_buf_add(&c->got->body, c->in.p, c->in.n);
		c->got->end = c->got->end == HTTP_CUT ? HTTP_WHOLE : c->got->end;
	}
}

static void read_answer(struct call *c)
{
	char line[2048];
	if (!call_line(c, line, sizeof line))
		return;
	if (sscanf(line, "HTTP/1.1 %d", &c->got->status) != 1) {
		(void)call_end(c, HTTP_BROKEN);
		return;
	}
	while (call_line(c, line, sizeof line)) {
		if (line[0] == '\0') {
			read_body(c);
			return;
		}
		cgn_buf_fmt(&c->got->head, "%s\n", line);
	}
}

static bool call_dial(struct call *c)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(c->want->port)};
	(void)inet_pton(AF_INET, c->want->ip, &a.sin_addr);
	c->fd = socket(AF_INET, SOCK_STREAM, 0);
	return connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0;
}

bool http_send_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
		if (sent <= 0)
			return false;
		p += sent;
		n -= (size_t)sent;
	}
	return true;
}

void http_ask(const struct http_want *want, struct http_got *got)
{
	struct call c = {.want = want, .got = got, .fd = -1, .began = world_now()};
	struct cgn_buf head = {0};
	*got = (struct http_got){.end = HTTP_REFUSED};
	cgn_buf_fmt(&head, "%s %s HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n%s", want->method,
		want->path, want->headers != NULL ? want->headers : "");
	if (want->body.n > 0)
		cgn_buf_fmt(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", want->body.n);
	cgn_buf_putz(&head, "\r\n");
	if (call_dial(&c)) {
		/* An answer may come, and the connection end, before all is sent. */
		(void)(http_send_all(c.fd, head.p, head.n) &&
			http_send_all(c.fd, want->body.p, want->body.n));
		read_answer(&c);
	}
	(void)close(c.fd);
	cgn_buf_fini(&head);
	cgn_buf_fini(&c.in);
	got->took = world_now() - c.began;
}

void http_got_fini(struct http_got *got)
{
	cgn_buf_fini(&got->head);
	cgn_buf_fini(&got->body);
}

struct cgn_str http_header(const struct http_got *got, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = got->head.p, *end = p + got->head.n; p != NULL && p < end;) {
		const char *line_end = memchr(p, '\n', (size_t)(end - p));
		if ((size_t)(line_end - p) > n && strncasecmp(p, name, n) == 0 && p[n] == ':') {
			p += n + 1;
			p += strspn(p, " ");
			return (struct cgn_str){p, (size_t)(line_end - p)};
		}
		p = line_end + 1;
	}
	return (struct cgn_str){0};
}

const char *http_end_text(enum http_end end)
{
	static const char *const texts[] = {
		[HTTP_WHOLE] = "whole",
		[HTTP_CUT] = "cut",
		[HTTP_NOTHING] = "no answer",
		[HTTP_REFUSED] = "no connection",
		[HTTP_SILENT] = "silent",
		[HTTP_LEFT] = "left",
		[HTTP_BROKEN] = "not HTTP",
	};
	return texts[end];
}
