// SPDX-License-Identifier: MIT OR Apache-2.0
// A rule option for Snort 3: `weir_token:VERDICT, settings "FILE";` matches SYNs whose token has
// this verdict, or with `refused` any but `valid`. What it does is in weir_token.h; this is how
// Snort asks it. It takes a Snort that has framework/ips_info.h.

#include <memory>
#include <string>

#include "framework/ips_option.h"
#include "framework/module.h"
#include "hash/hash_key_operations.h"
#include "log/messages.h"
#include "protocols/packet.h"

#include "weir_token.h"

using namespace snort;

static const char* s_name = "weir_token";
static const char* s_help = "rule option for SYNs by what their token of weir's proves";

// In the order of weir_token::Verdict, whose NONE is of packets that are no SYN.
static const char* s_verdicts = "refused|valid|missing|malformed|shortened|other-version|"
    "unknown-key|other-epoch|not-named|wrong-mac|replayed";

class WeirTokenOption : public IpsOption
{
public:
    WeirTokenOption(unsigned verdict, const std::string& path,
        std::shared_ptr<const weir_token::Verifier> verifier)
        : IpsOption(s_name), wanted(verdict), settings(path), verifier(std::move(verifier))
    { }

    uint32_t hash() const override
    {
        uint32_t a = wanted, b = 0, c = 0;
        mix_str(a, b, c, settings.c_str());
        mix_str(a, b, c, get_name());
        finalize(a, b, c);
        return c;
    }

    bool operator==(const IpsOption& other) const override
    {
        if ( strcmp(s_name, other.get_name()) != 0 )
            return false;
        const WeirTokenOption& option = static_cast<const WeirTokenOption&>(other);
        return wanted == option.wanted and settings == option.settings;
    }

    EvalStatus eval(Cursor&, Packet* p) override
    {
        const uint8_t* ip = nullptr;
        if ( p->ptrs.ip_api.is_ip4() )
            ip = reinterpret_cast<const uint8_t*>(p->ptrs.ip_api.get_ip4h());
        else if ( p->ptrs.ip_api.is_ip6() )
            ip = reinterpret_cast<const uint8_t*>(p->ptrs.ip_api.get_ip6h());
        // Its header is a part of what was received, unless Snort has made the packet up.
        if ( !ip or !p->pkt or !p->pkth or ip < p->pkt or ip >= p->pkt + p->pktlen )
            return NO_MATCH;
        const size_t length = p->pktlen - size_t(ip - p->pkt);
        // A packet is asked about once for each rule, and says the same each time.
        static thread_local weir_token::Connections connections;
        const weir_token::Verdict verdict =
            verifier->judge(ip, length, uint64_t(p->pkth->ts.tv_sec), connections);
        if ( verdict == weir_token::NONE )
            return NO_MATCH;
        const bool is_wanted = wanted == weir_token::NONE ?
            verdict != weir_token::VALID : verdict == wanted;
        return is_wanted ? MATCH : NO_MATCH;
    }

private:
    unsigned wanted;
    std::string settings;
    std::shared_ptr<const weir_token::Verifier> verifier;
};

static const Parameter s_params[] =
{
    { "~verdict", Parameter::PT_ENUM, s_verdicts, nullptr,
      "match SYNs with this verdict; refused: with any but valid" },

    { "settings", Parameter::PT_STRING, nullptr, nullptr,
      "path of the file that names keys and programs" },

    { nullptr, Parameter::PT_MAX, nullptr, nullptr, nullptr }
};

class WeirTokenModule : public Module
{
public:
    WeirTokenModule() : Module(s_name, s_help, s_params) { }

    bool begin(const char*, int, SnortConfig*) override
    {
        verdict = weir_token::NONE;
        settings.clear();
        verifier.reset();
        return true;
    }

    bool set(const char*, Value& v, SnortConfig*) override
    {
        if ( v.is("~verdict") )
            verdict = v.get_uint8();
        else
            settings = v.get_unquoted_string();
        return true;
    }

    // Files are read while Snort is root, before it gives that up.
    bool end(const char*, int, SnortConfig*) override
    {
        try
        {
            verifier = std::make_shared<const weir_token::Verifier>(
                weir_token::Verifier::read(settings));
            return true;
        }
        catch ( const std::exception& error )
        {
            ErrorMessage("weir_token: %s\n", error.what());
            return false;
        }
    }

    Usage get_usage() const override
    { return DETECT; }

    unsigned verdict = weir_token::NONE;
    std::string settings;
    std::shared_ptr<const weir_token::Verifier> verifier;
};

static Module* mod_ctor()
{ return new WeirTokenModule; }

static void mod_dtor(Module* m)
{ delete m; }

static IpsOption* option_ctor(Module* m, IpsInfo&)
{
    const WeirTokenModule* module = static_cast<const WeirTokenModule*>(m);
    return new WeirTokenOption(module->verdict, module->settings, module->verifier);
}

static void option_dtor(IpsOption* option)
{ delete option; }

// By names, because versions of Snort differ in a member that is zero here.
static IpsApi make_api()
{
    IpsApi api { };
    api.base.type = PT_IPS_OPTION;
    api.base.size = sizeof(IpsApi);
    api.base.api_version = IPSAPI_VERSION;
    api.base.options = API_OPTIONS;
    api.base.name = s_name;
    api.base.help = s_help;
    api.base.mod_ctor = mod_ctor;
    api.base.mod_dtor = mod_dtor;
    api.type = OPT_TYPE_DETECTION;
    api.max_per_rule = 1;
    api.protos = PROTO_BIT__TCP;
    api.ctor = option_ctor;
    api.dtor = option_dtor;
    return api;
}

static const IpsApi s_api = make_api();

SO_PUBLIC const BaseApi* snort_plugins[] =
{
    &s_api.base,
    nullptr
};
