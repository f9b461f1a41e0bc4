// SPDX-License-Identifier: MIT OR Apache-2.0
// Does the SYN of a TCP connection prove which program began it? The verification of weir's tokens
// without Snort, for weir_token.cc and for whoever else has packets. `weir token verify` says the
// same of each of them.

#ifndef WEIR_TOKEN_H
#define WEIR_TOKEN_H

#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace weir_token
{
using Bytes = std::vector<uint8_t>;
using Digest = std::array<uint8_t, 32>;

// In the order of `names`.
enum Verdict : unsigned
{
    NONE, // no SYN of TCP, or a part of one
    VALID,
    MISSING,
    MALFORMED,
    SHORTENED,
    OTHER_VERSION,
    UNKNOWN_KEY,
    OTHER_EPOCH,
    NOT_NAMED,
    WRONG_MAC,
    REPLAYED
};

inline const char* name(Verdict verdict)
{
    static const char* const names[] = { "-", "valid", "missing", "malformed", "shortened",
        "other-version", "unknown-key", "other-epoch", "not-named", "wrong-mac",
        "replayed" };
    return names[verdict];
}

// FIPS 180-4. Its numbers are reckoned: the fractions of roots of primes.
class Sha256
{
public:
    static Digest digest(const Bytes& text)
    {
        Bytes padded(text);
        padded.push_back(0x80);
        while ( padded.size() % 64 != 56 )
            padded.push_back(0);
        for ( int shift = 56; shift >= 0; shift -= 8 )
            padded.push_back(uint8_t((uint64_t(text.size()) * 8) >> shift));
        const Numbers& numbers = the_numbers();
        std::array<uint32_t, 8> state = numbers.begin;
        for ( size_t at = 0; at < padded.size(); at += 64 )
            compress(state, &padded[at], numbers.round);
        Digest digest;
        for ( size_t n = 0; n < 32; ++n )
            digest[n] = uint8_t(state[n / 4] >> (24 - 8 * (n % 4)));
        return digest;
    }

    // RFC 2104, with a key of at most 64 bytes.
    static Digest hmac(const uint8_t* key, size_t length, const Bytes& text)
    {
        Bytes inner(64, 0x36), outer(64, 0x5c);
        for ( size_t n = 0; n < length; ++n )
        {
            inner[n] ^= key[n];
            outer[n] ^= key[n];
        }
        inner.insert(inner.end(), text.begin(), text.end());
        const Digest first = digest(inner);
        outer.insert(outer.end(), first.begin(), first.end());
        const Digest second = digest(outer);
        wipe(inner.data(), inner.size());
        wipe(outer.data(), outer.size());
        return second;
    }

    static void wipe(uint8_t* bytes, size_t length)
    {
        volatile uint8_t* each = bytes;
        while ( length-- )
            *each++ = 0;
    }

private:
    struct Numbers
    {
        std::array<uint32_t, 64> round;
        std::array<uint32_t, 8> begin;
    };

    // 32 bits of the fraction of a root: of the greatest number whose `power` is at most `of`, in
    // units of 2^-32.
    static uint32_t root(unsigned of, unsigned power)
    {
        uint64_t low = 0, high = uint64_t(20) << 32;
        while ( high - low > 1 )
        {
            const uint64_t middle = low + (high - low) / 2;
            // A cube has 110 bits at most.
            unsigned __int128 value = middle;
            for ( unsigned n = 1; n < power; ++n )
                value *= middle;
            (value >> (32 * power) >= of ? high : low) = middle;
        }
        return uint32_t(low);
    }

    static const Numbers& the_numbers()
    {
        static const Numbers numbers = make_numbers();
        return numbers;
    }

    static Numbers make_numbers()
    {
        Numbers numbers;
        unsigned found = 0;
        for ( unsigned number = 2; found < 64; ++number )
        {
            bool is_prime = true;
            for ( unsigned divisor = 2; divisor * divisor <= number; ++divisor )
                is_prime = is_prime && number % divisor != 0;
            if ( !is_prime )
                continue;
            numbers.round[found] = root(number, 3);
            if ( found < 8 )
                numbers.begin[found] = root(number, 2);
            ++found;
        }
        return numbers;
    }

    static uint32_t rotate(uint32_t word, unsigned bits)
    { return (word >> bits) | (word << (32 - bits)); }

    static void compress(std::array<uint32_t, 8>& state, const uint8_t* block,
        const std::array<uint32_t, 64>& round)
    {
        uint32_t w[64];
        for ( unsigned n = 0; n < 16; ++n )
            w[n] = uint32_t(block[4 * n]) << 24 | uint32_t(block[4 * n + 1]) << 16
                | uint32_t(block[4 * n + 2]) << 8 | block[4 * n + 3];
        for ( unsigned n = 16; n < 64; ++n )
        {
            const uint32_t s0 = rotate(w[n - 15], 7) ^ rotate(w[n - 15], 18) ^ (w[n - 15] >> 3);
            const uint32_t s1 = rotate(w[n - 2], 17) ^ rotate(w[n - 2], 19) ^ (w[n - 2] >> 10);
            w[n] = w[n - 16] + s0 + w[n - 7] + s1;
        }
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for ( unsigned n = 0; n < 64; ++n )
        {
            const uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round[n] + w[n];
            const uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g; g = f; f = e; e = d + t1;
            d = c; c = b; b = a; a = t1 + t2;
        }
        const uint32_t more[] = { a, b, c, d, e, f, g, h };
        for ( unsigned n = 0; n < 8; ++n )
            state[n] += more[n];
    }
};

// SipHash-2-4 of whole words of eight bytes.
class SipHash
{
public:
    SipHash(uint64_t k0, uint64_t k1)
        : a(k0 ^ 0x736f6d6570736575), b(k1 ^ 0x646f72616e646f6d), c(k0 ^ 0x6c7967656e657261),
          d(k1 ^ 0x7465646279746573)
    { }

    static uint64_t hash(const std::array<uint64_t, 2>& key, const uint8_t* bytes, size_t length)
    {
        SipHash sip(key[0], key[1]);
        for ( size_t at = 0; at + 8 <= length; at += 8 )
            sip.add(word(bytes + at));
        sip.add(uint64_t(length) << 56);
        sip.c ^= 0xff;
        for ( int n = 0; n < 4; ++n )
            sip.round();
        return sip.a ^ sip.b ^ sip.c ^ sip.d;
    }

    static uint64_t word(const uint8_t* bytes)
    {
        uint64_t word = 0;
        for ( int n = 7; n >= 0; --n )
            word = word << 8 | bytes[n];
        return word;
    }

private:
    static uint64_t rotate(uint64_t word, unsigned bits)
    { return (word << bits) | (word >> (64 - bits)); }

    void add(uint64_t word)
    {
        d ^= word;
        round();
        round();
        a ^= word;
    }

    void round()
    {
        a += b; b = rotate(b, 13) ^ a; a = rotate(a, 32);
        c += d; d = rotate(d, 16) ^ c;
        a += d; d = rotate(d, 21) ^ a;
        c += b; b = rotate(b, 17) ^ c; c = rotate(c, 32);
    }

    uint64_t a, b, c, d;
};

// What a verifier knows: keys of programs, and how far clocks may be from each other.
// The connections whose SYN was valid, of one thread, to know a SYN that comes again.
class Connections
{
public:
    // A segment of the client that is no SYN.
    void note_segment(const std::string& ends)
    {
        Known* known = find(ends);
        if ( known )
            known->is_used = true;
    }

    // Whether a valid SYN comes again behind more of its client. Before that it is sent again.
    bool is_replay(const std::string& ends, uint32_t number)
    {
        Known* known = find(ends);
        if ( known && known->number == number )
            return known->is_used;
        if ( known )
            *known = { number, false };
        else
            remember(ends, { number, false });
        return false;
    }

private:
    // So many and up to twice as many: when the first table is full the second one goes.
    static const size_t MOST = 32768;

    struct Known
    {
        uint32_t number;
        bool is_used;
    };

    Known* find(const std::string& ends)
    {
        auto at = recent.find(ends);
        if ( at != recent.end() )
            return &at->second;
        at = older.find(ends);
        if ( at == older.end() )
            return nullptr;
        const Known known = at->second;
        return remember(ends, known);
    }

    Known* remember(const std::string& ends, const Known& known)
    {
        if ( recent.size() >= MOST )
        {
            older.clear();
            older.swap(recent);
        }
        return &(recent[ends] = known);
    }

    std::unordered_map<std::string, Known> recent, older;
};

class Verifier
{
public:
    // Reads a file of settings, a word and a value in each line: `key_file` and the path of a key
    // of weir's (also several), `aggregate` and the SHA-256 of a program (also several), and
    // `epoch_slack` and 0 to 1000 epochs of 64 seconds. What stands in a file of keys is in no
    // message.
    static Verifier read(const std::string& path)
    {
        std::ifstream file(path);
        if ( !file )
            throw std::runtime_error(path + ": cannot read it");
        Verifier verifier;
        std::vector<Digest> aggregates;
        std::vector<std::string> key_files;
        std::string line;
        for ( unsigned number = 1; std::getline(file, line); ++number )
        {
            std::istringstream words(line);
            std::string word, value, more;
            if ( !(words >> word) || word[0] == '#' )
                continue;
            const std::string place = path + ":" + std::to_string(number) + ": ";
            words >> value;
            if ( value.empty() || (words >> more) )
                throw std::runtime_error(place + "a line is a word and a value");
            if ( word == "key_file" )
                key_files.push_back(value);
            else if ( word == "aggregate" )
            {
                Digest digest;
                if ( !digest_of(value, digest) )
                    throw std::runtime_error(place + "aggregate; allowed: 64 hexadecimal digits");
                aggregates.push_back(digest);
            }
            else if ( word == "epoch_slack" )
            {
                if ( !number_of(value, 1000, verifier.slack) )
                    throw std::runtime_error(place + "epoch_slack; allowed: 0 to 1000");
            }
            else
                throw std::runtime_error(
                    place + "unknown word; allowed: key_file, aggregate, epoch_slack");
        }
        if ( key_files.empty() || aggregates.empty() )
            throw std::runtime_error(path + ": a key_file and an aggregate have to be there");
        for ( const std::string& key_file : key_files )
            verifier.add_key(key_file, aggregates);
        return verifier;
    }

    // What an IP packet proves, of which `length` bytes are there, at this time. `connections` are
    // those of the packets before, which have come in their order.
    Verdict judge(const uint8_t* ip, size_t length, uint64_t seconds,
        Connections& connections) const
    {
        Syn syn;
        const Read read = read_segment(ip, length, syn);
        if ( read != SEGMENT )
            return read == UNREAD ? MALFORMED : NONE;
        std::string ends(reinterpret_cast<const char*>(syn.source), 16);
        ends.append(reinterpret_cast<const char*>(syn.dest), 16);
        ends.append(reinterpret_cast<const char*>(syn.tcp), 4);
        if ( (syn.tcp[13] & 0x12) != 0x02 )
        {
            connections.note_segment(ends);
            return NONE;
        }
        const Verdict verdict = judge_syn(syn, seconds);
        uint32_t number;
        memcpy(&number, syn.tcp + 4, 4);
        if ( verdict == VALID && connections.is_replay(ends, number) )
            return REPLAYED;
        return verdict;
    }

private:
    struct Syn;

    // A packet: no TCP, a later part of one, or too little of it; one that its receiver may read,
    // as the first part of several, or behind headers that are not gone through; a segment.
    enum Read { OTHER, UNREAD, SEGMENT };

    // What the token of a SYN says at this time.
    Verdict judge_syn(const Syn& syn, uint64_t seconds) const
    {
        if ( !syn.has_options )
            return syn.is_cut ? SHORTENED : MALFORMED;
        const uint8_t* token = nullptr;
        if ( !find(syn.options, syn.options_length, TCP_KIND, false, token) )
            return MALFORMED;
        if ( !token )
        {
            if ( !syn.ip_is_right )
                return MALFORMED;
            token = syn.ip_token;
        }
        if ( !token )
            return MISSING;
        if ( token[4] != VERSION )
            return OTHER_VERSION;
        const Key* key = nullptr;
        bool is_known = false;
        for ( const Key& one : keys )
        {
            if ( one.id != token[5] )
                continue;
            is_known = true;
            // The first one of those that a tag means.
            if ( !key && !memcmp(one.tag.data(), token + 8, 4) )
                key = &one;
        }
        if ( !is_known )
            return UNKNOWN_KEY;
        const uint64_t now = seconds / EPOCH_SECONDS;
        const int16_t ahead = int16_t(uint16_t(uint64_t(token[6] << 8 | token[7]) - now));
        if ( ahead > int(slack) || -int(ahead) > int(slack) )
            return OTHER_EPOCH;
        if ( !key )
            return NOT_NAMED;
        uint8_t statement[56] = { VERSION, token[5], TCP, 0 };
        memcpy(statement + 4, syn.tcp + 4, 4);
        const uint64_t epoch = now + uint64_t(int64_t(ahead));
        for ( int n = 0; n < 8; ++n )
            statement[8 + n] = uint8_t(epoch >> (56 - 8 * n));
        memcpy(statement + 16, syn.source, 16);
        memcpy(statement + 32, syn.dest, 16);
        memcpy(statement + 48, syn.tcp, 4);
        const uint64_t mac = SipHash::hash(key->words, statement, sizeof statement);
        return mac == SipHash::word(token + 12) ? VALID : WRONG_MAC;
    }

    // Kinds of options, and the bytes of a token.
    static const uint8_t TCP_KIND = 254, IP_KIND = 30, TOKEN_BYTES = 20, VERSION = 1, TCP = 6,
        FRAGMENT = 44;
    static const unsigned EPOCH_SECONDS = 64, CHAIN = 6, EXTENSION_MOST = 62;

    // The key of a program with one secret.
    struct Key
    {
        uint8_t id;
        std::array<uint8_t, 4> tag;
        std::array<uint64_t, 2> words;
    };

    struct Syn
    {
        // As IPv6 has them.
        uint8_t source[16] = { }, dest[16] = { };
        const uint8_t* tcp = nullptr;
        const uint8_t* options = nullptr;
        size_t options_length = 0;
        bool has_options = false;
        bool is_cut = false;
        const uint8_t* ip_token = nullptr;
        bool ip_is_right = true;
    };

    static bool digest_of(const std::string& text, Digest& digest)
    {
        if ( text.size() != 64 )
            return false;
        for ( size_t n = 0; n < 64; ++n )
        {
            const char one = text[n];
            uint8_t digit;
            if ( one >= '0' && one <= '9' )
                digit = uint8_t(one - '0');
            else if ( one >= 'a' && one <= 'f' )
                digit = uint8_t(one - 'a' + 10);
            else if ( one >= 'A' && one <= 'F' )
                digit = uint8_t(one - 'A' + 10);
            else
                return false;
            digest[n / 2] = n % 2 ? uint8_t(digest[n / 2] | digit) : uint8_t(digit << 4);
        }
        return true;
    }

    static bool number_of(const std::string& text, unsigned most, unsigned& number)
    {
        if ( text.empty() || text.size() > 4 )
            return false;
        unsigned value = 0;
        for ( char one : text )
        {
            if ( one < '0' || one > '9' )
                return false;
            value = value * 10 + unsigned(one - '0');
        }
        number = value;
        return value <= most;
    }

    // A file of keys of weir's, of which `id` and `secret` count here.
    void add_key(const std::string& path, const std::vector<Digest>& aggregates)
    {
        struct stat status;
        std::ifstream file(path);
        if ( stat(path.c_str(), &status) != 0 || !file )
            throw std::runtime_error(path + ": cannot read it");
        if ( (status.st_mode & 077) != 0 )
            throw std::runtime_error(path + ": others can read it; allowed: mode 0600");
        unsigned id = 0;
        Digest secret;
        bool has_secret = false;
        std::string line;
        while ( std::getline(file, line) )
        {
            const size_t equals = line.find('=');
            if ( line.empty() || line[0] == '#' || equals == std::string::npos )
                continue;
            std::string key, value;
            std::istringstream(line.substr(0, equals)) >> key;
            std::istringstream(line.substr(equals + 1)) >> value;
            if ( key == "id" && !number_of(value, 255, id) )
                id = 0;
            if ( key == "secret" && value.size() == 66 )
                has_secret = digest_of(value.substr(1, 64), secret);
            Sha256::wipe(reinterpret_cast<uint8_t*>(&value[0]), value.size());
            Sha256::wipe(reinterpret_cast<uint8_t*>(&line[0]), line.size());
        }
        if ( id == 0 || !has_secret )
            throw std::runtime_error(path + ": it is no key, or one that is retired");
        static const char label[] = "weir token 1 identity";
        for ( const Digest& aggregate : aggregates )
        {
            Bytes text(label, label + sizeof label - 1);
            text.push_back(uint8_t(id));
            text.insert(text.end(), aggregate.begin(), aggregate.end());
            const Digest whole = Sha256::hmac(secret.data(), secret.size(), text);
            Key key;
            key.id = uint8_t(id);
            memcpy(key.tag.data(), aggregate.data(), 4);
            key.words = { { SipHash::word(&whole[0]), SipHash::word(&whole[8]) } };
            keys.push_back(key);
        }
        Sha256::wipe(secret.data(), secret.size());
    }

    // Finds the token among options; false: they contradict themselves. Of IPv6 padding is 0 and
    // nothing the end, and lengths are without kind and length.
    static bool find(const uint8_t* options, size_t length, uint8_t wanted, bool is_ipv6,
        const uint8_t*& token)
    {
        size_t at = 0;
        token = nullptr;
        while ( at < length )
        {
            const uint8_t kind = options[at];
            if ( kind == 0 && !is_ipv6 )
                break;
            if ( kind == (is_ipv6 ? 0 : 1) )
            {
                ++at;
                continue;
            }
            if ( at + 1 >= length )
                return false;
            const size_t bytes = options[at + 1] + (is_ipv6 ? 2u : 0u);
            if ( bytes < 2 || bytes > length - at )
                return false;
            const uint8_t* option = options + at;
            if ( kind == wanted && bytes >= 4 && option[2] == 0x77 && option[3] == 0x65 )
            {
                if ( token || bytes != TOKEN_BYTES )
                    return false;
                token = option;
            }
            at += bytes;
        }
        return true;
    }

    // A header of IPv6 that stands before another one: hop-by-hop options, routing, a fragment,
    // destination options.
    static bool is_extension(uint8_t header)
    { return header == 0 || header == 43 || header == FRAGMENT || header == 60; }

    static Read read_segment(const uint8_t* ip, size_t length, Syn& syn)
    {
        if ( length < 20 )
            return OTHER;
        bool is_part = false;
        const bool is_ipv6 = ip[0] >> 4 == 6;
        size_t at;
        const size_t whole = is_ipv6 ? 40 + size_t(ip[4] << 8 | ip[5]) : size_t(ip[2] << 8 | ip[3]);
        syn.is_cut = whole > length;
        // Behind its length is what the link has filled up; a superpacket may say none.
        if ( whole < length && whole >= (is_ipv6 ? 41u : 20u) )
            length = whole;
        if ( ip[0] >> 4 == 4 )
        {
            at = size_t(ip[0] & 15) * 4;
            // A later part, and another protocol.
            if ( at < 20 || (ip[6] & 0x1f) != 0 || ip[7] != 0 || ip[9] != TCP )
                return OTHER;
            if ( at > length )
                return syn.is_cut ? OTHER : UNREAD;
            is_part = (ip[6] & 0x20) != 0;
            syn.source[10] = syn.source[11] = syn.dest[10] = syn.dest[11] = 0xff;
            memcpy(syn.source + 12, ip + 12, 4);
            memcpy(syn.dest + 12, ip + 16, 4);
            syn.ip_is_right = find(ip + 20, at - 20, IP_KIND, false, syn.ip_token);
        }
        else if ( is_ipv6 && length >= 40 )
        {
            memcpy(syn.source, ip + 8, 16);
            memcpy(syn.dest, ip + 24, 16);
            uint8_t next = ip[6];
            const uint8_t* options = nullptr;
            size_t options_length = 0;
            at = 40;
            for ( unsigned n = 0; n < CHAIN && is_extension(next); ++n )
            {
                if ( at + 4 > length )
                    return syn.is_cut ? OTHER : UNREAD;
                size_t bytes = (size_t(ip[at + 1]) + 1) * 8;
                if ( next == FRAGMENT )
                {
                    if ( ip[at + 2] != 0 || (ip[at + 3] & 0xf8) != 0 )
                        return OTHER;
                    // That of a whole packet (RFC 6946) is no part.
                    is_part = is_part || (ip[at + 3] & 1) != 0;
                    bytes = 8;
                }
                if ( bytes > length - at )
                    return syn.is_cut ? OTHER : UNREAD;
                if ( next == 60 && ip[at] == TCP )
                {
                    options = ip + at + 2;
                    options_length = bytes - 2;
                }
                next = ip[at];
                at += bytes;
            }
            if ( is_extension(next) )
                return UNREAD;
            if ( next != TCP )
                return OTHER;
            if ( options && options_length <= EXTENSION_MOST )
                syn.ip_is_right = find(options, options_length, IP_KIND, true, syn.ip_token);
        }
        else
            return OTHER;
        if ( length - at < 20 )
            return syn.is_cut ? OTHER : UNREAD;
        if ( is_part )
            return UNREAD;
        syn.tcp = ip + at;
        const size_t header = size_t(syn.tcp[12] >> 4) * 4;
        syn.has_options = header >= 20 && header <= length - at;
        if ( syn.has_options )
        {
            syn.options = syn.tcp + 20;
            syn.options_length = header - 20;
        }
        return SEGMENT;
    }

    std::vector<Key> keys;
    unsigned slack = 1;
};
}
#endif
