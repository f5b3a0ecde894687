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
#include "base/core/err.h"

struct call {
	const struct http_want *want;
	struct http_got *got;
	struct http_conn *conn;
	uint64_t began, bytes;
	bool over; /* got->end is set */
};

/* ---- bytes ---- */

/* Wait until the socket is readable, or writable; false: |until| has passed. */
static bool fd_wait(int fd, short events, uint64_t until)
{
	uint64_t now = world_now();
	struct pollfd p = {.fd = fd, .events = events};
	return now < until && poll(&p, 1, (int)((until - now) / WORLD_MS + 1)) > 0;
}

static bool send_until(int fd, const char *p, size_t n, uint64_t until)
{
	while (n > 0) {
		ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN && fd_wait(fd, POLLOUT, until))
			continue;
		if (sent <= 0)
			return false;
		p += sent;
		n -= (size_t)sent;
	}
	return true;
}

bool http_send_all(int fd, const char *p, size_t n)
{
	return send_until(fd, p, n, UINT64_MAX);
}

/* When the client loses its patience. */
static uint64_t until_of(const struct http_want *want, uint64_t began)
{
	uint64_t silent = want->timeout > 0 ? world_now() + want->timeout : UINT64_MAX,
		 leaves = want->leave_at > 0 ? began + want->leave_at : UINT64_MAX;
	return silent < leaves ? silent : leaves;
}

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

/* Read more bytes into the connection's buffer. False: there are no more. */
static bool call_fill(struct call *c)
{
	char bytes[16384];
	if (call_leaves(c))
		return call_end(c, HTTP_LEFT);
	if (c->want->pause > 0)
		world_sleep(c->want->pause);
	if (!fd_wait(c->conn->fd, POLLIN, until_of(c->want, c->began)))
		return call_end(c, call_leaves(c) ? HTTP_LEFT : HTTP_SILENT);
	size_t most = c->want->leave_after > 0 ? (size_t)(c->want->leave_after - c->bytes) : sizeof bytes;
	ssize_t n = recv(c->conn->fd, bytes, most < sizeof bytes ? most : sizeof bytes, 0);
	if (n < 0 && errno == EAGAIN)
		return true;
	if (n <= 0)
		return call_end(c, c->bytes == 0 ? HTTP_NOTHING : HTTP_CUT);
	if (c->bytes == 0)
		c->got->first_byte = world_now() - c->began;
	c->bytes += (uint64_t)n;
	cgn_buf_add(&c->conn->in, bytes, (size_t)n);
	return true;
}

/* ---- an answer ---- */

/* Move a line without its end into |out|. */
static bool call_line(struct call *c, char *out, size_t cap)
{
	struct cgn_buf *in = &c->conn->in;
	char *end;
	while ((end = in->n > 0 ? memmem(in->p, in->n, "\r\n", 2) : NULL) == NULL)
		if (!call_fill(c))
			return false;
	size_t n = (size_t)(end - in->p);
	(void)snprintf(out, cap, "%.*s", (int)n, in->p);
	cgn_buf_eat(in, n + 2);
	return true;
}

static bool call_bytes(struct call *c, size_t n)
{
	struct cgn_buf *in = &c->conn->in;
	while (n > 0) {
		size_t take = in->n < n ? in->n : n;
		cgn_buf_add(&c->got->body, in->p, take);
		if (take > 0)
			cgn_buf_eat(in, take);
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

/* Read an answer that ends with its connection; one that is reset is not whole. */
static void read_rest(struct call *c)
{
	struct cgn_buf *in = &c->conn->in;
	errno = 0;
	while (call_fill(c))
		errno = 0;
	cgn_buf_add(&c->got->body, in->p, in->n);
	c->got->keeps = false;
	if (c->got->end == HTTP_CUT && errno == 0)
		c->got->end = HTTP_WHOLE;
}

static void read_body(struct call *c)
{
	struct cgn_str length = http_header(c->got, "content-length"),
		       conn = http_header(c->got, "connection");
	c->got->keeps = !c->want->old && (conn.n != 5 || strncasecmp(conn.p, "close", 5) != 0);
	if (c->got->status == 204 || c->got->status == 304) {
		(void)call_end(c, HTTP_WHOLE);
	} else if (http_header(c->got, "transfer-encoding").n > 0) {
		if (c->want->old)
			(void)call_end(c, HTTP_BROKEN); /* HTTP/1.0 knows no chunks */
		else
			read_chunks(c);
	} else if (length.n > 0) {
		if (call_bytes(c, strtoull(length.p, NULL, 10)))
			(void)call_end(c, HTTP_WHOLE);
	} else {
		read_rest(c);
	}
}

/* Read a head. False: there is none. */
static bool read_head(struct call *c)
{
	char line[2048];
	c->got->head.n = 0;
	if (!call_line(c, line, sizeof line))
		return false;
	if (sscanf(line, "HTTP/1.%*1[01] %d", &c->got->status) != 1)
		return call_end(c, HTTP_BROKEN);
	while (call_line(c, line, sizeof line)) {
		if (line[0] == '\0')
			return true;
		cgn_buf_fmt(&c->got->head, "%s\n", line);
	}
	return false;
}

void http_read(struct http_conn *conn, const struct http_want *want, struct http_got *got)
{
	struct call c = {.want = want, .got = got, .conn = conn, .began = world_now(), .bytes = conn->in.n};
	*got = (struct http_got){.end = HTTP_REFUSED};
	if (conn->open) {
		bool head;
		while ((head = read_head(&c)) && got->status < 200 && got->status >= 100)
			;
		if (head)
			read_body(&c);
		conn->answers++;
		conn->rests = world_now();
		if (got->end != HTTP_WHOLE || !got->keeps || conn->half)
			http_close(conn);
	}
	got->took = world_now() - c.began;
}

/* ---- a request ---- */

static bool conn_dial(struct http_conn *c, const struct http_want *want)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(want->port)};
	int error = 0;
	socklen_t n = sizeof error;
	(void)inet_pton(AF_INET, want->ip, &a.sin_addr);
	*c = (struct http_conn){.open = true, .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
	if (connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0)
		return true;
	if (errno == EINPROGRESS && fd_wait(c->fd, POLLOUT, until_of(want, world_now())) &&
		getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0)
		return true;
	http_close(c);
	return false;
}

/* Send the body in chunks of any size, some with an extension, and a trailer. */
static bool send_chunks(int fd, const struct http_want *want, uint64_t until)
{
	struct cgn_str rest = want->body;
	while (rest.n > 0) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		size_t n = 1 + world_draw(world_chance(2) ? 8 : rest.n);
		n = n < rest.n ? n : rest.n;
		cgn_buf_fmt(&b, "%zx%s\r\n", n, world_chance(8) ? ";a=\"b\"" : "");
		cgn_buf_add(&b, rest.p, n);
		cgn_buf_putz(&b, "\r\n");
		if (!send_until(fd, b.p, b.n, until))
			return false;
		rest = (struct cgn_str){rest.p + n, rest.n - n};
		if (want->between > 0 && world_chance(20))
			world_sleep(world_draw(want->between));
	}
	static const char end[] = "0\r\n\r\n", trailer[] = "0\r\nx-sum: 1\r\n\r\n";
	bool plain = !world_chance(8);
	return send_until(fd, plain ? end : trailer, plain ? sizeof end - 1 : sizeof trailer - 1, until);
}

/* Wait for 100 Continue. False: the answer is there already, and the body is not wanted. */
static bool may_continue(struct http_conn *c)
{
	char bytes[1024];
	uint64_t until = world_now() + WORLD_SEC;
	while (c->in.n < 12 && fd_wait(c->fd, POLLIN, until)) {
		ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return false;
		if (n > 0)
			cgn_buf_add(&c->in, bytes, (size_t)n);
	}
	return c->in.n < 12 || memcmp(c->in.p + 9, "100", 3) == 0;
}

bool http_send(struct http_conn *c, const struct http_want *want)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	if (!c->open && !conn_dial(c, want))
		return false;
	uint64_t until = until_of(want, world_now());
	cgn_buf_fmt(&b, "%s %s HTTP/1.%c\r\nHost: %s\r\n%s", want->method, want->path, want->old ? '0' : '1',
		cgn_str_starts(cgn_str_of(want->ip), "127.") ? "localhost" : "gateway",
		want->headers != NULL ? want->headers : "");
	if (want->body.n > 0)
		cgn_buf_fmt(&b, "Content-Type: %s\r\n", want->kind != NULL ? want->kind : "application/json");
	if (want->body.n > 0 && want->chunks)
		cgn_buf_putz(&b, "Transfer-Encoding: chunked\r\n");
	else if (want->body.n > 0)
		cgn_buf_fmt(&b, "Content-Length: %zu\r\n", want->body.n);
	if (want->expects)
		cgn_buf_putz(&b, "Expect: 100-continue\r\n");
	cgn_buf_putz(&b, "\r\n");
	/* An answer may come, and the connection end, before all is sent. */
	bool sent = send_until(c->fd, b.p, b.n, until);
	c->half = want->expects && !may_continue(c);
	if (sent && !c->half && want->body.n > 0)
		(void)(want->chunks ? send_chunks(c->fd, want, until)
				    : send_until(c->fd, want->body.p, want->body.n, until));
	return true;
}

void http_close(struct http_conn *c)
{
	if (c->open && c->fd >= 0)
		(void)close(c->fd);
	cgn_buf_fini(&c->in);
	c->open = c->half = false;
}

void http_ask(const struct http_want *want, struct http_got *got)
{
	struct http_conn c = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf headers = {0};
	struct http_want one = *want;
	uint64_t began = world_now();
	cgn_buf_fmt(&headers, "Connection: close\r\n%s", want->headers != NULL ? want->headers : "");
	one.headers = cgn_buf_z(&headers);
	(void)http_send(&c, &one);
	if (one.leave_at > 0) { /* The time counts from the request's beginning */
		uint64_t spent = world_now() - began;
		one.leave_at = one.leave_at > spent ? one.leave_at - spent : 1;
	}
	http_read(&c, &one, got);
	http_close(&c);
	got->took = world_now() - began;
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
