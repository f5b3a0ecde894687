/* SPDX-License-Identifier: Apache-2.0 */
#include "fake.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <gnutls/gnutls.h>
#include <sys/socket.h>

#include "base/core/alloc.h"
#include "base/core/buf.h"

#define QUESTION_MOST ((size_t)1 << 20)
#define FAKES_MOST    64

struct fake_talk {
	struct fake *fake;
	int fd;
	gnutls_session_t tls; /* NULL: in clear */
	gnutls_certificate_credentials_t cred;
	struct cgn_buf in;
};

/* ---- bytes ---- */

bool fake_send(struct fake_talk *t, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t sent =
			t->tls != NULL ? gnutls_record_send(t->tls, p, n) : send(t->fd, p, n, MSG_NOSIGNAL);
		if (t->tls != NULL && (sent == GNUTLS_E_INTERRUPTED || sent == GNUTLS_E_AGAIN))
			continue;
		if (sent <= 0)
			return false;
		p += sent;
		n -= (size_t)sent;
	}
	return true;
}

static bool talk_fill(struct fake_talk *t)
{
	char bytes[4096];
	ssize_t n = t->tls != NULL ? gnutls_record_recv(t->tls, bytes, sizeof bytes)
				   : recv(t->fd, bytes, sizeof bytes, 0);
	if (n <= 0 || t->in.n > QUESTION_MOST)
		return false;
	cgn_buf_add(&t->in, bytes, (size_t)n);
	return true;
}

bool fake_stream(struct fake_talk *t, int status, const char *kind)
{
	char head[256];
	int n = snprintf(head, sizeof head, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nConnection: close\r\n\r\n",
		status, kind);
	return fake_send(t, head, (size_t)n);
}

bool fake_reply(struct fake_talk *t, int status, const char *kind, struct cgn_str body)
{
	char head[256];
	int n = snprintf(head, sizeof head,
		"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, kind, body.n);
	return fake_send(t, head, (size_t)n) && fake_send(t, body.p, body.n);
}

/* ---- questions ---- */

static size_t length_of(struct cgn_str head)
{
	static const char name[] = "content-length:";
	for (size_t i = 0; i + sizeof name < head.n; i++)
		if (strncasecmp(head.p + i, name, sizeof name - 1) == 0)
			return strtoull(head.p + i + sizeof name - 1, NULL, 10);
	return 0;
}

/* Read a question. False: the client has gone. */
static bool question_read(struct fake_talk *t, struct fake_question *q, size_t *size)
{
	const char *end;
	while (t->in.n == 0 || (end = memmem(t->in.p, t->in.n, "\r\n\r\n", 4)) == NULL)
		if (!talk_fill(t))
			return false;
	size_t head = (size_t)(end - t->in.p) + 4;
	size_t body = length_of((struct cgn_str){t->in.p, head});
	while (t->in.n < head + body)
		if (!talk_fill(t))
			return false;
	*q = (struct fake_question){.head = {t->in.p, head}, .body = {t->in.p + head, body}};
	*size = head + body;
	return sscanf(t->in.p, "%15s %511s", q->method, q->path) == 2;
}

static bool talk_secure(struct fake_talk *t)
{
	const struct fake *f = t->fake;
	if (f->cert == NULL)
		return true;
	int rc = gnutls_certificate_allocate_credentials(&t->cred);
	if (rc == 0)
		rc = gnutls_certificate_set_x509_key_file(t->cred, f->cert, f->key, GNUTLS_X509_FMT_PEM);
	if (rc >= 0)
		rc = gnutls_init(&t->tls, GNUTLS_SERVER | GNUTLS_NO_SIGNAL);
	if (rc == 0)
		rc = gnutls_set_default_priority(t->tls);
	if (rc == 0)
		rc = gnutls_credentials_set(t->tls, GNUTLS_CRD_CERTIFICATE, t->cred);
	if (rc != 0) {
		world_tell("%s: no TLS: %s", f->name, gnutls_strerror(rc));
		return false;
	}
	gnutls_transport_set_int(t->tls, t->fd);
	gnutls_handshake_set_timeout(t->tls, GNUTLS_INDEFINITE_TIMEOUT);
	do
		rc = gnutls_handshake(t->tls);
	while (rc < 0 && gnutls_error_is_fatal(rc) == 0);
	return rc == 0;
}

static void talk_run(void *arg)
{
	struct fake_talk *t = arg;
	struct fake_question q;
	size_t size;
	bool on = talk_secure(t);
	while (on && question_read(t, &q, &size)) {
		t->fake->questions++;
		on = t->fake->serve(t, &q, t->fake->user);
		cgn_buf_eat(&t->in, size);
	}
	if (t->tls != NULL && !world_chance(8))
		(void)gnutls_bye(t->tls, GNUTLS_SHUT_WR);
	if (t->tls != NULL)
		gnutls_deinit(t->tls);
	if (t->cred != NULL)
		gnutls_certificate_free_credentials(t->cred);
	(void)close(t->fd);
	cgn_buf_fini(&t->in);
	free(t);
}

/* ---- the process ---- */

static struct fake *fakes[FAKES_MOST];
static size_t n_fakes;

static int fake_main(int argc, char **argv)
{
	struct fake *f = fakes[strtoul(argv[argc - 1], NULL, 10)];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(f->port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0)
		return 1;
	for (int c; (c = accept4(fd, NULL, NULL, 0)) >= 0;) {
		struct fake_talk *t = CGN_NEW(struct fake_talk);
		*t = (struct fake_talk){.fake = f, .fd = c};
		world_spawn(talk_run, t);
	}
	return 0;
}

world_main *fake_program(struct fake *f, const char **argv)
{
	static char numbers[FAKES_MOST][8];
	size_t i = 0;
	while (i < n_fakes && fakes[i] != f)
		i++;
	if (i == n_fakes && n_fakes == FAKES_MOST)
		world_fail("more than %d fakes", FAKES_MOST);
	if (i == n_fakes)
		fakes[n_fakes++] = f;
	(void)snprintf(numbers[i], sizeof numbers[i], "%zu", i);
	argv[0] = f->name;
	argv[1] = numbers[i];
	argv[2] = NULL;
	return fake_main;
}

struct world_proc *fake_start(struct world_host *h, struct fake *f)
{
	const char *argv[3];
	world_main *fn = fake_program(f, argv);
	return world_start(h, f->name, fn, argv);
}
