/* SPDX-License-Identifier: Apache-2.0 */
/* k8s, inside: the server, its credentials, and the start of a request. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/net/tls/tls.h"
#include "io/os/loop/backoff.h"
#include "io/wire/http/client.h"
#include "io/wire/k8s/k8s.h"

#define K8S_TAG 0x6b385001U

/* Where the server is and how to identify to it. Files that the kubeconfig has inside lie in memory. */
#define K8S_MEMORY_FILES 3
struct k8s_access {
	char *address, *server_name; /* "host:port"; name in the certificate, NULL: the host */
	char *space;                 /* namespace */
	char *token, *token_file;    /* bearer token; a file is read again */
	char *ca_file, *cert_file, *key_file;
	int memory[K8S_MEMORY_FILES]; /* descriptors of files in memory */
	size_t n_memory;
};
CGN_RC k8s_access_read(const char *kubeconfig, struct k8s_access *out, struct cgn_err *err);
void k8s_access_fini(struct k8s_access *a);

struct k8s {
	uint32_t tag;
	unsigned users; /* calls, watches and leases */
	struct cgn_loop *loop;
	struct k8s_access access;
	struct tls_ctx *tls;
	struct http_client *http;
	struct cgn_buf bearer; /* "Bearer TOKEN"; empty: none */
	cgn_nsec token_read_at, tls_read_at;
};
/* Start a request with the credentials. */
CGN_RC k8s_start(struct k8s *k, const struct k8s_request *rq, cgn_nsec idle_timeout,
	const struct http_call_ops *ops, void *user, struct http_call **out, struct cgn_err *err);
/* No connection came about: the authority may have changed. */
void k8s_unreachable(struct k8s *k);
/* Fill |err| for an answer with this status, whose body may be a Status object. */
void k8s_status_err(int status, struct cgn_str body, struct cgn_err *err);
/* The sentence of a failed call. */
void k8s_call_err(const struct k8s *k, const struct cgn_err *why, struct cgn_err *err);
