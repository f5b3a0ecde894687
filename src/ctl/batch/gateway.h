/* SPDX-License-Identifier: Apache-2.0 */
/* gateway: blocking requests to a router's gateway, for the verbs of batches. Files go and come as streams, at most
 * 256 KiB of them in memory. One thread. */
/* batch, the room: the verbs of batches. */
#pragma once
#include "ctl/ctl.h"

struct ctl_gateway;
/* Open the gateway that --url, --ca and --crl name, with the API key of --key-file, else of $CGN_API_KEY. */
CGN_RC ctl_gateway_open(const struct ctl_args *a, struct ctl_gateway **out, struct cgn_err *err);
void ctl_gateway_close(struct ctl_gateway **take);

/* All requests: a status other than 200 is the code of that status, and the message is the gateway's own;
 * UNAVAILABLE: the gateway does not answer; DEADLINE: not within --timeout. |path| begins with /v1. */

/* Send |payload| (p NULL: no body) as JSON, and append the answer, at most 4 MiB, to |out|, which was empty. */
CGN_RC ctl_gateway_ask(struct ctl_gateway *g, const char *method, const char *path, struct cgn_str payload,
	struct cgn_buf *out, struct cgn_err *err);
/* Upload |file| to /v1/files with the purpose batch; as ctl_gateway_ask otherwise. NOT_FOUND, FORBIDDEN, STORAGE: |file|
 * cannot be read. --timeout does not bound an upload. */
CGN_RC ctl_gateway_upload(struct ctl_gateway *g, const char *file, struct cgn_buf *out, struct cgn_err *err);
/* Write the body of the answer to GET |path| to |fd|. STORAGE: |fd| takes no more. */
CGN_RC ctl_gateway_save(struct ctl_gateway *g, const char *path, int fd, struct cgn_err *err);
