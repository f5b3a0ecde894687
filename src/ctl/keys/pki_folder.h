/* SPDX-License-Identifier: Apache-2.0 */
/* pki_folder: the folder of a CA and its certificates, as the pki verbs share it. */
#pragma once
#include <sys/stat.h>

#include "io/net/pki/pki.h"

#define PKI_PEM_LIMIT ((size_t)256 << 10)
#define PKI_DAY       86400
#define PKI_SKEW      300 /* Allowance in seconds for clocks of other machines that are behind. */

int64_t pki_now(void); /* Unix seconds. */
/* Return the whole days from now until |end|, rounded down; negative: it is past. */
int64_t pki_days_left(int64_t end);
/* Write DIR/NAMESUFFIX to |out| (PATH_MAX bytes). CGN_INVALID: too long. */
CGN_RC pki_path(const char *dir, const char *name, const char *suffix, char *out, struct cgn_err *err);
/* Read NAME.pem and NAME.key, NUL-terminated. */
CGN_RC pki_read_pair(const char *dir, const char *name, struct pki_pair *out, struct cgn_err *err);
/* Write a file; one that was there keeps its mode and owner. */
CGN_RC pki_write(const char *path, const struct cgn_buf *text, mode_t mode, struct cgn_err *err);
/* Write NAME.key and NAME.pem. */
CGN_RC pki_write_pair(const char *dir, const char *name, const struct pki_pair *pair, struct cgn_err *err);
/* Renew, and print, each certificate with a key that the first CA of ca.pem did not sign. */
CGN_RC pki_renew_strangers(const char *dir, bool json, struct cgn_err *err);
/* CGN_INVALID names a certificate that the first CA of ca.pem did not sign. */
CGN_RC pki_refuse_strangers(const char *dir, struct cgn_err *err);
