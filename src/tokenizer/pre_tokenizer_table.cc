// The pre-tokenizer names that GGUF files use, and the patterns they stand for.
//
// A pattern is part of the vocabulary it was trained with: it cannot be chosen, only be right or wrong.
// Sources: the tokenizer.json of the models named, and llama.cpp's table of names; checked by the tokenizer
// fixtures.
#include <algorithm>
#include <iterator>

#include "tokenizer/pre_tokenizer.h"

namespace ganglion::tokenizer {

namespace {

using Step = PreTokenizerStep;

constexpr std::string_view kGpt2 =
    R"re({{lower_contraction}}| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kQwen2 =
    R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|)re"
    R"re(\s+)re";
constexpr std::string_view kLlama3 =
    R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)re"
    R"re(\s+(?!\S)|\s+)re";
constexpr std::string_view kGpt4o = R"re([^\r\n\p{L}\p{N}]?[{{upper}}]*[{{lower}}]+(?:{{contraction}})?|)re"
                                    R"re([^\r\n\p{L}\p{N}]?[{{upper}}]+[{{lower}}]*(?:{{contraction}})?|)re"
                                    R"re(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kWordsAfterPunctuation =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)re"
    R"re( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr std::string_view kDigit = R"re(\p{N})re";
constexpr std::string_view kUpToThreeDigits = R"re(\p{N}{1,3})re";
constexpr std::string_view kThreeAsciiDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kHanAndKana = R"re([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re";
constexpr std::string_view kHanToHangul = R"re([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)re";
constexpr std::string_view kBloomWords =
    R"re( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)re";
constexpr std::string_view kLines = R"re([^\n]+|\n+)re";

// The cased letters as the DeepSeek LLM tokenizer lists them; newer Unicode has more.
constexpr std::string_view kDeepseekLetters =
    R"re(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})re"
    R"re(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C})re"
    R"re(\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})re"
    R"re(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})re"
    R"re(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})re"
    R"re(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})re"
    R"re(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})re"
    R"re(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})re"
    R"re(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139})re"
    R"re(\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})re"
    R"re(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})re"
    R"re(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})re"
    R"re(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})re"
    R"re(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)re";
constexpr Step kDefaultSteps[] = {
    {R"re([\p{P}$+<=>^~|]+)re"}, {kGpt2}, {R"re(\p{N}+)re"}, {kThreeAsciiDigits}};
constexpr Step kGpt2Steps[] = {{kGpt2}};
constexpr Step kSmollmSteps[] = {{kDigit}, {kGpt2}};
constexpr Step kFalconSteps[] = {{R"re([\p{P}$+<=>^~|`]+)re"}, {kGpt2}, {kThreeAsciiDigits}};
constexpr Step kQwen2Steps[] = {{kQwen2}};
constexpr Step kQwen35Steps[] = {
    {R"re({{contraction}}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)re"
     R"re(\s*[\r\n]+|\s+(?!\S)|\s+)re"}};
constexpr Step kUfakzekaSteps[] = {
    {R"re([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"}};
constexpr Step kLagunaSteps[] = {{kLines}, {kQwen2}};
constexpr Step kLlama3Steps[] = {{kLlama3}};
constexpr Step kMinicpm5Steps[] = {
    {kUpToThreeDigits},
    {R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)re"
     R"re(\s+(?!\S)|\s+)re"}};
// The look-behind changes no match (within a run of spaces, one that leads to no line end was tried before);
// without it every group of 512 would look through the whole run again.
constexpr Step kJais2Steps[] = {
    {R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)re"
     R"re((?<![\t\x0B\x0C\x{85}\p{Z}])\s*[\r\n]+|)re"
     R"re(\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|)re"
     R"re(\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)re"}};
constexpr Step kDeepseekLlmSteps[] = {
    {R"re([\r\n])re"},
    {kDeepseekLetters},
    {R"re(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)re"},
    // Upstream has \s+$. Anchored to the start of a run, a megabyte of spaces is looked at once, not n times.
    {R"re((?<!\s)\s++\z)re"},
    {kHanToHangul},
    {R"re(\p{N}+)re"}};
constexpr Step kDeepseekCoderSteps[] = {
    {R"re([\r\n])re"}, {R"re(\s?\p{L}+)re"}, {R"re(\s?\p{P}+)re"}, {kHanToHangul}, {kDigit}};
constexpr Step kDeepseek3Steps[] = {{kUpToThreeDigits}, {kHanAndKana}, {kWordsAfterPunctuation}};
constexpr Step kSpark25Steps[] = {
    {kUpToThreeDigits},
    {kHanAndKana},
    {R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)re"
     R"re( ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)re"},
    {kDigit}};
constexpr Step kYoutuSteps[] = {
    {R"re([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|)re"
     R"re([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C})re"
     R"re(\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|)re"
     R"re([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)re"},
    {R"re([^\r\n\p{L}\p{N}]?[{{upper}}]*[{{lower}}]+(?:{{contraction}})?|)re"
     R"re([^\r\n\p{L}\p{N}]?[{{upper}}]+[{{lower}}]*(?:{{contraction}})?|)re"
     R"re(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"}};
constexpr Step kBloomSteps[] = {{kBloomWords}};
constexpr Step kVikingSteps[] = {{kBloomWords}, {kDigit}};
constexpr Step kTekkenSteps[] = {
    {R"re([^\r\n\p{L}\p{N}]?[{{upper}}]*[{{lower}}]+|[^\r\n\p{L}\p{N}]?[{{upper}}]+[{{lower}}]*|)re"
     R"re(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"}};
constexpr Step kChameleonSteps[] = {{"<sentinel:[0-9]+>"},           {"(?:IMGIMG)[A-I]{1,4}Z"},
                                    {R"re([\t\n]|    |  )re"},       {kDigit},
                                    {R"re([\p{P}!-/:-@\[-`{-~])re"}, {kGpt2}};
constexpr Step kGpt4oSteps[] = {{kGpt4o}};
// Digits are grouped from the right only where no word character follows: \d{1,3}(?=(?:\d{3})*\b), made
// linear.
constexpr Step kTinyAyaSteps[] = {{R"re((?<!\p{Nd})\p{Nd}++(?![\p{L}\p{M}\p{N}_]))re", true}, {kGpt4o}};
constexpr Step kSuperbpeSteps[] = {{R"re(\p{N}+)re"}, {R"re(\p{Nd}+)re", true}};
constexpr Step kAfmoeSteps[] = {
    {R"re(\p{N}+)re", true},
    {R"re([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})re"
     R"re(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF})re"
     R"re(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)re"},
    {kWordsAfterPunctuation}};
// Upstream intersects {{upper}} and {{lower}} with "not Han"; written here as what is left out.
constexpr Step kKimiK2Steps[] = {
    {R"re([{{han}}]+|)re"
     R"re([^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}{{han}}]*)re"
     R"re([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}{{han}}]+(?:{{contraction}})?|)re"
     R"re([^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}{{han}}]+)re"
     R"re([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}{{han}}]*(?:{{contraction}})?|)re"
     R"re(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"}};
constexpr Step kBailingSteps[] = {
    {R"re('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)re"
     R"re( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)re"}};
constexpr Step kSeedCoderSteps[] = {
    {R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|)re"
     R"re(\s+)re"}};
// Upstream nests repeats around each letter; one possessive repeat takes the same text in constant memory.
constexpr Step kExaoneMoeSteps[] = {
    {R"re({{contraction}}|[^\r\n\p{L}\p{N}]?\p{L}\p{M}*+(?: ?\p{L}\p{M}*+)*+|\p{N}|)re"
     R"re( ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)re"}};
constexpr Step kLineSteps[] = {{kLines}};

constexpr PreTokenizerSpec kGpt2Spec{kGpt2Steps, false, false, false};
constexpr PreTokenizerSpec kSmollmSpec{kSmollmSteps, false, false, false};
constexpr PreTokenizerSpec kQwen2Spec{kQwen2Steps, false, false, false};
constexpr PreTokenizerSpec kLlama3Spec{kLlama3Steps, true, true, false};
constexpr PreTokenizerSpec kLlama3PlainSpec{kLlama3Steps, false, false, false};
constexpr PreTokenizerSpec kDeepseek3Spec{kDeepseek3Steps, false, false, false};
constexpr PreTokenizerSpec kGpt4oSpec{kGpt4oSteps, false, false, false};
constexpr PreTokenizerSpec kTinyAyaSpec{kTinyAyaSteps, false, false, false};
constexpr PreTokenizerSpec kBloomSpec{kBloomSteps, false, false, false};
constexpr PreTokenizerSpec kBailingSpec{kBailingSteps, false, false, false};
constexpr PreTokenizerSpec kRawLinesSpec{kLineSteps, false, false, true};

struct Row {
  std::string_view name;
  PreTokenizerSpec spec;
};

constexpr Row kRows[] = {
    {"default", {kDefaultSteps, false, false, false}},
    {"llama3", kLlama3Spec},
    {"llama-v3", kLlama3Spec},
    {"llama-bpe", kLlama3Spec},
    {"falcon3", kLlama3Spec},
    {"falcon-h1", kLlama3Spec},
    {"pixtral", kLlama3Spec},
    {"midm-2.0", kLlama3Spec},
    {"lfm2", kLlama3Spec},
    {"jina-v5-nano", kLlama3Spec},
    {"minicpm5", {kMinicpm5Steps, true, false, false}},
    {"jais-2", {kJais2Steps, false, false, false}},
    {"dbrx", kLlama3PlainSpec},
    {"smaug-bpe", kLlama3PlainSpec},
    {"chatglm-bpe", kLlama3PlainSpec},
    {"glm4", kLlama3PlainSpec},
    {"deepseek-llm", {kDeepseekLlmSteps, false, false, false}},
    {"deepseek-coder", {kDeepseekCoderSteps, false, false, false}},
    {"deepseek-v3", kDeepseek3Spec},
    {"hunyuan-dense", kDeepseek3Spec},
    {"hy_v4", kDeepseek3Spec},
    {"joyai-llm", kDeepseek3Spec},
    {"spark2_5", {kSpark25Steps, false, false, false}},
    {"youtu", {kYoutuSteps, true, false, false}},
    {"falcon", {kFalconSteps, false, false, false}},
    {"starcoder", kSmollmSpec},
    {"refact", kSmollmSpec},
    {"command-r", kSmollmSpec},
    {"smollm", kSmollmSpec},
    {"codeshell", kSmollmSpec},
    {"exaone", kSmollmSpec},
    {"minerva-7b", kSmollmSpec},
    {"mellum2", kSmollmSpec},
    {"gpt-2", kGpt2Spec},
    {"phi-2", kGpt2Spec},
    {"mpt", kGpt2Spec},
    {"olmo", kGpt2Spec},
    {"jais", kGpt2Spec},
    {"trillion", kGpt2Spec},
    {"granite-docling", kGpt2Spec},
    {"exaone4", kGpt2Spec},
    {"gigachat", kGpt2Spec},
    {"a.x-4.0", kGpt2Spec},
    {"mellum", kGpt2Spec},
    {"modern-bert", kGpt2Spec},
    {"roberta-bpe", kGpt2Spec},
    {"jina-es", kGpt2Spec},
    {"jina-de", kGpt2Spec},
    {"jina-v1-en", kGpt2Spec},
    {"jina-v2-es", kGpt2Spec},
    {"jina-v2-de", kGpt2Spec},
    {"jina-v2-code", kGpt2Spec},
    {"stablelm2", kQwen2Spec},
    {"qwen2", kQwen2Spec},
    {"deepseek-r1-qwen", kQwen2Spec},
    {"kormo", kQwen2Spec},
    {"f2llmv2", kQwen2Spec},
    {"megrez", kQwen2Spec},
    {"hunyuan", kQwen2Spec},
    {"solar-open", kQwen2Spec},
    {"grok-2", kQwen2Spec},
    {"qwen35", {kQwen35Steps, false, false, false}},
    {"ufakzeka", {kUfakzekaSteps, false, false, false}},
    {"laguna", {kLagunaSteps, false, false, false}},
    {"poro-chat", kBloomSpec},
    {"bloom", kBloomSpec},
    {"gpt3-finnish", kBloomSpec},
    {"viking", {kVikingSteps, false, false, false}},
    {"tekken", {kTekkenSteps, true, true, false}},
    {"chameleon", {kChameleonSteps, false, true, false}},
    {"gpt-4o", kGpt4oSpec},
    {"llama4", kGpt4oSpec},
    {"kanana2", kGpt4oSpec},
    {"talkie", kGpt4oSpec},
    {"minimax-m2", kGpt4oSpec},
    {"granite-embed-multi-97m", {kGpt4oSteps, true, false, false}},
    {"tiny_aya", kTinyAyaSpec},
    {"cohere2moe", kTinyAyaSpec},
    {"superbpe", {kSuperbpeSteps, false, false, false}},
    {"afmoe", {kAfmoeSteps, false, false, false}},
    {"kimi-k2", {kKimiK2Steps, false, false, false}},
    {"bailingmoe", kBailingSpec},
    {"bailingmoe2", kBailingSpec},
    {"llada-moe", kBailingSpec},
    {"seed-coder", {kSeedCoderSteps, false, false, false}},
    {"exaone-moe", {kExaoneMoeSteps, false, false, false}},
    {"gemma4", kRawLinesSpec},
    {"granite-embed-multi-311m", kRawLinesSpec},
    {"sarvam-moe", kRawLinesSpec},
};

}  // namespace

const PreTokenizerSpec* find_pre_tokenizer(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : &row->spec;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const Row& row : kRows) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

}  // namespace ganglion::tokenizer
