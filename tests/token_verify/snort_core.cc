// SPDX-License-Identifier: MIT OR Apache-2.0
// Prints the number of each packet of a pcap of Ethernet with the verdict of dist/snort3/weir_token.h.
//
//   snort_core SETTINGS CAPTURE

#include <cstdio>
#include <iterator>

#include "weir_token.h"

using namespace weir_token;

static std::string hex(const Digest& digest)
{
    std::string text;
    for ( uint8_t byte : digest )
    {
        char two[3];
        snprintf(two, sizeof two, "%02x", byte);
        text += two;
    }
    return text;
}

static uint32_t word(const Bytes& file, size_t at)
{
    return uint32_t(file[at]) | uint32_t(file[at + 1]) << 8 | uint32_t(file[at + 2]) << 16
        | uint32_t(file[at + 3]) << 24;
}

int main(int, char** argv)
{
    const std::string abc = "abc";
    if ( hex(Sha256::digest(Bytes(abc.begin(), abc.end())))
        != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" )
        return 3;
    try
    {
        const Verifier verifier = Verifier::read(argv[1]);
        std::ifstream in(argv[2], std::ios::binary);
        const Bytes file { std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>() };
        unsigned number = 0;
        Connections connections;
        for ( size_t at = 24; at + 16 <= file.size(); )
        {
            const uint32_t seconds = word(file, at), length = word(file, at + 8);
            // A place of its own, so that what is read beyond it is seen.
            const Bytes packet(file.begin() + long(at) + 16 + 14, file.begin() + long(at) + 16 + long(length));
            printf("%u\t%s\n", ++number, name(verifier.judge(packet.data(), packet.size(), seconds, connections)));
            at += 16 + length;
        }
    }
    catch ( const std::exception& error )
    {
        fprintf(stderr, "%s\n", error.what());
        return 2;
    }
    return 0;
}
