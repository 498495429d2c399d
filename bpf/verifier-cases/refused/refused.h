/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Programs that a verifier must refuse, one for each of the twenty refusals that people meet most often. The expectation
 * stands in the program: the line after "refused:" is the one that is named, with that kind, and each "hint:" gives words
 * that the hint must hold. "packet:" says that a packet must be found with which the program faults there.
 */
#ifndef REFUSED_H
#define REFUSED_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#endif
