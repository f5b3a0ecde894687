/* SPDX-License-Identifier: Apache-2.0 */
/* proxy: a process between an agent and its engine, which passes bytes on and does to one answer of so many what the plan
 * says: cuts it at a byte, makes it late, adds to it, puts another one in its place. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <sys/socket.h>

#include "base/core/alloc.h"
#include "base/core/buf.h"
#include "scenario.h"

struct link {
	int client, engine;
	enum odd odd;      /* The fault of this answer */
	uint64_t cut_at;   /* Bytes of the answer that pass */
	unsigned chunks;   /* Chunks so far */
	bool messages;     /* Anthropic's API */
	struct cgn_buf in; /* The request */
};

static uint64_t answers;

static bool send_text(int fd, const char *text)
{
	return http_send_all(fd, text, strlen(text));
}

/* Return the value of a header as a number, or |fallback|. */
static size_t number_in(const struct cgn_buf *head, size_t end, const char *name, size_t fallback)
{
	size_t n = strlen(name);
	for (size_t i = 0; i + n < end; i++)
		if (strncasecmp(head->p + i, name, n) == 0)
			return strtoull(head->p + i + n, NULL, 10);
	return fallback;
}

static bool has_text(const struct cgn_buf *b, size_t end, const char *text)
{
	size_t n = strlen(text);
	for (size_t i = 0; i + n <= end; i++)
		if (strncasecmp(b->p + i, text, n) == 0)
			return true;
	return false;
}

/* Read until |b| has a head; return its length, or 0 at the end. */
static size_t read_head(int fd, struct cgn_buf *b)
{
	char bytes[16384];
	for (;;) {
		const char *end = b->n > 0 ? memmem(b->p, b->n, "\r\n\r\n", 4) : NULL;
		if (end != NULL)
			return (size_t)(end - b->p) + 4;
		ssize_t n = recv(fd, bytes, sizeof bytes, 0);
		if (n <= 0)
			return 0;
		cgn_buf_add(b, bytes, (size_t)n);
	}
}

static bool read_more(int fd, struct cgn_buf *b)
{
	char bytes[16384];
	ssize_t n = recv(fd, bytes, sizeof bytes, 0);
	if (n > 0)
		cgn_buf_add(b, bytes, (size_t)n);
	return n > 0;
}

/* ---- answers that are not the engine's ---- */

static bool answer_text(const struct link *l, const char *status, const char *text)
{
	char answer[400];
	(void)snprintf(answer, sizeof answer,
		"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status,
		strlen(text), text);
	return send_text(l->client, answer);
}

static bool answer_instead(const struct link *l)
{
	static const char page[] = "<html><body>502 Bad Gateway</body></html>";
	char head[200];
	switch ((int)l->odd) {
	case ODD_PAGE:
		(void)snprintf(head, sizeof head,
			"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %zu\r\n\r\n%s",
			strlen(page), page);
		return send_text(l->client, head);
	case ODD_EMPTY:
		return send_text(l->client,
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
	case ODD_GARBAGE:
		(void)send_text(l->client, "\x16\x03\x01 not an answer\r\n\r\n");
		return false;
	case ODD_EVENT_ERROR:
		return send_text(l->client,
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
			"39\r\ndata: {\"error\":{\"message\":\"the queue is full\",\"code\":503}}\r\n0\r\n\r\n");
	case ODD_NO_MODEL:
		return answer_text(l, "404 Not Found",
			"{\"error\":{\"message\":\"The model `m` does not exist.\",\"code\":404}}");
	case ODD_NO_KEY:
		return answer_text(l, "401 Unauthorized", "{\"error\":{\"message\":\"Unauthorized\"}}");
	case ODD_NO_LIST:
		return answer_text(l, "200 OK", "{\"object\":\"list\",\"data\":[]}");
	default:
		return false;
	}
}

static bool is_instead(enum odd o)
{
	return o == ODD_PAGE || o == ODD_EMPTY || o == ODD_GARBAGE || o == ODD_EVENT_ERROR ||
		o == ODD_NO_MODEL || o == ODD_NO_KEY || o == ODD_NO_LIST;
}

/* ---- the engine's answer ---- */

/* Pass |n| bytes on. False: the connection is to end. */
static bool pass_bytes(struct link *l, const char *p, size_t n)
{
	if (l->odd == ODD_CUT_BYTE && l->cut_at <= n) {
		(void)http_send_all(l->client, p, l->cut_at);
		return false;
	}
	l->cut_at -= l->odd == ODD_CUT_BYTE ? n : 0;
	if (l->odd == ODD_LATE && world_chance(3))
		world_sleep(world_draw(9 * WORLD_SEC));
	if (l->odd != ODD_PIECES)
		return http_send_all(l->client, p, n);
	for (size_t i = 0; i < n; i++) {
		if (!http_send_all(l->client, p + i, 1))
			return false;
		if (world_chance(50))
			world_sleep(world_draw(5 * WORLD_MS));
	}
	return true;
}

static bool pass_n(struct link *l, struct cgn_buf *b, size_t n)
{
	while (n > 0) {
		if (b->n == 0 && !read_more(l->engine, b))
			return false;
		size_t part = b->n < n ? b->n : n;
		bool ok = pass_bytes(l, b->p, part);
		cgn_buf_eat(b, part);
		if (!ok)
			return false;
		n -= part;
	}
	return true;
}

static bool send_chunk(const struct link *l, const char *text)
{
	char chunk[300];
	(void)snprintf(chunk, sizeof chunk, "%zx\r\n%s\r\n", strlen(text), text);
	return send_text(l->client, chunk);
}

/* Wait, or send a chunk of our own, before the next one. False: the connection is to end. */
static bool chunk_odd(struct link *l, bool last)
{
	static const char error[] =
		"data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"code\":500}}\n\n";
	static const char anthropic[] =
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"out of memory\"}}\n\n";
	l->chunks++;
	if (l->odd == ODD_SELDOM && l->chunks < 8)
		world_sleep(14 * WORLD_SEC);
	if (l->odd == ODD_BEHIND && last)
		return send_chunk(l, "data: {\"choices\":[]}\n\n");
	if (l->odd != ODD_MIDDLE || l->chunks != 3 || last)
		return true;
	return send_chunk(l, l->messages ? anthropic : error) && send_text(l->client, "0\r\n\r\n") && false;
}

static bool pass_chunks(struct link *l, struct cgn_buf *b)
{
	for (;;) {
		const char *end;
		while ((end = b->n > 0 ? memmem(b->p, b->n, "\r\n", 2) : NULL) == NULL)
			if (!read_more(l->engine, b))
				return false;
		size_t size = strtoull(b->p, NULL, 16), line = (size_t)(end - b->p) + 2;
		if (!chunk_odd(l, size == 0))
			return false;
		if (!pass_n(l, b, line + size + 2))
			return false;
		if (size == 0)
			return true;
	}
}

/* Tell another length than the body has. */
static void head_odd(const struct link *l, struct cgn_buf *b, size_t head)
{
	char *at = l->odd == ODD_LONGER || l->odd == ODD_SHORTER ? memmem(b->p, head, "ength: ", 7) : NULL;
	if (at == NULL)
		return;
	at[7] = l->odd == ODD_LONGER ? '9' : '1';
}

/* Pass one answer on. False: both connections end. */
static bool pass_answer(struct link *l)
{
	struct cgn_buf b = {0};
	size_t head = read_head(l->engine, &b);
	bool chunked = head > 0 && has_text(&b, head, "transfer-encoding: chunked");
	size_t length = head > 0 ? number_in(&b, head, "content-length:", 0) : 0;
	bool ok = head > 0;
	if (ok && !chunked)
		head_odd(l, &b, head);
	if (ok && l->odd == ODD_CONTINUE)
		ok = send_text(l->client, "HTTP/1.1 100 Continue\r\n\r\n");
	ok = ok && pass_n(l, &b, head) && (chunked ? pass_chunks(l, &b) : pass_n(l, &b, length));
	cgn_buf_fini(&b);
	/* A server may close a connection whenever it rests. */
	return ok && l->odd != ODD_CLOSES && l->odd != ODD_LONGER && l->odd != ODD_SELDOM;
}

/* ---- requests ---- */

static enum odd odd_of(const struct cgn_buf *in, size_t head)
{
	bool generates = head > 5 && memcmp(in->p, "POST ", 5) == 0 && has_text(in, head, "/v1/") &&
		!has_text(in, head, "tokenize");
	if (PLAN(odd_engine) == ODD_NO_LIST)
		generates =
			has_text(in, head, "GET /v1/models ") && world_now() > 8 * WORLD_SEC && !cluster.over;
	if (!generates || ++answers % PLAN(odd_share) != 0)
		return ODD_NOTHING;
	return (enum odd)PLAN(odd_engine);
}

static bool pass_request(struct link *l)
{
	size_t head = read_head(l->client, &l->in);
	if (head == 0)
		return false;
	size_t all = head + number_in(&l->in, head, "content-length:", 0);
	while (l->in.n < all)
		if (!read_more(l->client, &l->in))
			return false;
	l->odd = odd_of(&l->in, head);
	l->chunks = 0;
	l->messages = has_text(&l->in, head, "/v1/messages");
	l->cut_at = l->odd == ODD_CUT_BYTE ? 1 + world_draw(2500) : 0;
	bool instead = is_instead(l->odd),
	     ok = instead ? answer_instead(l) : http_send_all(l->engine, l->in.p, all);
	cgn_buf_eat(&l->in, all);
	return ok && (instead || pass_answer(l));
}

static int dial_engine(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons(8000),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
		return fd;
	(void)close(fd);
	return -1;
}

static void link_run(void *arg)
{
	struct link *l = arg;
	l->engine = dial_engine();
	while (l->engine >= 0 && pass_request(l))
		;
	if (l->engine >= 0)
		(void)close(l->engine);
	(void)close(l->client);
	cgn_buf_fini(&l->in);
	free(l);
}

int proxy_main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(8001)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	(void)argc, (void)argv;
	if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0)
		return 1;
	for (;;) {
		int client = accept4(fd, NULL, NULL, 0);
		if (client < 0)
			return 1;
		struct link *l = CGN_NEW(struct link);
		*l = (struct link){.client = client, .engine = -1};
		world_spawn(link_run, l);
	}
}
