/* SPDX-License-Identifier: Apache-2.0 */
/* modelsource: where a model's files come from: addresses, and the lists of files that hubs, registries and buckets
 * give. Pure. The lists are foreign: names that lead out of the folder are refused.
 *
 * Wire facts: https://huggingface.co/docs/hub/api (tree, resolve), the OCI distribution and image specifications 1.1,
 * S3's ListObjectsV2. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/err.h"
#include "base/core/str.h"

enum modelsource_kind {
	MODELSOURCE_HUB,
	MODELSOURCE_OCI,
	MODELSOURCE_S3,
	MODELSOURCE_HTTP,
	MODELSOURCE_PATH
};
struct modelsource {
	enum modelsource_kind kind;
	char host[256]; /* OCI: host, with its port. */
	char name
		[2048]; /* HUB: ORG/REPO; OCI: the repository; S3: the bucket; HTTP: the URL; PATH: the path. */
	char revision[256]; /* HUB: a branch, tag or commit; OCI: a tag or digest. */
	char prefix[1024];  /* S3: keys begin with it; without '/' at the end. */
};
/* Parse hf:ORG/REPO[@REVISION], oci://HOST/REPO[:TAG|@DIGEST], s3://BUCKET[/PREFIX], http(s)://..., file:PATH
 * or a path. CGN_INVALID names the error and the allowed forms. */
CGN_RC modelsource_parse(const char *text, struct modelsource *out, struct cgn_err *err);
/* Return the last part of the name, by which the model's folder is called. */
struct cgn_str modelsource_title(const struct modelsource *s);

struct modelsource_file {
	const char *path;  /* Relative, safe to create below a folder. */
	const char *where; /* HUB, S3: the path as the source has it; OCI: the blob's digest. */
	uint64_t size;     /* UINT64_MAX: not known. */
	char sha256[65];   /* Hex; empty: the source tells none. */
};
#define MODELSOURCE_FILES 65536
struct modelsource_list {
	struct cgn_arena *arena; /* Memory of the texts and of |files|. */
	struct modelsource_file *files;
	size_t n, cap;
};
/* True for a relative path of parts that are neither empty, "." nor "..", without control characters and of at most
 * 1,024 bytes. */
bool modelsource_path_is_safe(struct cgn_str path);
/* Append a file. CGN_BAD_GATEWAY: its path is not safe; CGN_TOO_LARGE: there are too many. */
CGN_RC modelsource_list_add(struct modelsource_list *l, struct cgn_str path, struct cgn_str where,
	uint64_t size, struct cgn_str sha256, struct cgn_err *err);

/* Append the files of a page of the hub's tree. */
CGN_RC modelsource_hub_read(struct cgn_str json, struct modelsource_list *l, struct cgn_err *err);
/* Append the layers of a manifest. For an index: |*next| gets the digest of its first manifest. */
CGN_RC modelsource_oci_read(struct cgn_str json, struct modelsource_list *l, char next[128],
	struct cgn_err *err);
/* Append the keys of a page below |prefix|. |token|: how to ask for the next page; empty: this was the last. */
CGN_RC modelsource_s3_read(struct cgn_str xml, const char *prefix, struct modelsource_list *l,
	char token[1100], struct cgn_err *err);
